def copy_files(
    source_fd: int,
    target_fd: int,
    names: tuple[bytes, ...],
    reflink: bool,
    keep: bool,
    large: int,
    most: int,
    /,
) -> tuple[list[tuple[tuple[int, int, int, int, int], bytes | None] | int], bool]: ...
