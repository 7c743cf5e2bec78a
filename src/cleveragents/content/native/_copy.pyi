FORM: int
KNOWS_SHA: int

def blob_name(content: bytes | memoryview, /) -> bytes: ...
def copy_files(
    source_fd: int,
    target_fd: int,
    names: tuple[bytes, ...],
    reflink: bool,
    buffer: memoryview,
    large: int,
    keep: int,
    /,
) -> tuple[list[tuple[tuple[int, int, int, int, int], int | bytes | None, bool] | int], bool]: ...
