"""What `pyproject.toml` cannot say: one of the compiled parts is a program of its own."""

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

PROGRAM = "cleveragents.integrations.client_quick"


class BuildProgram(build_ext):
    def get_ext_filename(self, fullname: str) -> str:
        # asked by the whole name and by its last part
        if fullname and PROGRAM.endswith(fullname):
            return fullname.replace(".", "/")
        return super().get_ext_filename(fullname)

    def build_extension(self, ext: Extension) -> None:
        if ext.name != PROGRAM:
            super().build_extension(ext)
            return
        objects = self.compiler.compile(ext.sources, output_dir=self.build_temp)
        self.compiler.link_executable(objects, self.get_ext_fullpath(ext.name))


setup(cmdclass={"build_ext": BuildProgram})
