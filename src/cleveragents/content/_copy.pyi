def copy_files(
    source_fd: int,
    target_fd: int,
    names: tuple[bytes, ...],
    reflink: bool,
    buffer: memoryview,
    large: int,
    keep: bool,
    /,
) -> tuple[list[tuple[tuple[int, int, int, int, int], int | None] | int], bool]: ...
