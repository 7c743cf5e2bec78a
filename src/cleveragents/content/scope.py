"""The scope of a resource: all below its root but excluded paths and inner resources."""

import fnmatch

import msgspec

_WILD = b"*?["


class Scope(msgspec.Struct, frozen=True):
    exclude: tuple[bytes, ...] = ()
    """Paths, or glob patterns, that are never captured, restored or applied."""
    links: dict[bytes, bytes] = {}
    """Places of inner resources -> the text of the link that must be there."""
    skip: tuple[bytes, ...] = ()
    """Places of inner resources in the user's own tree."""

    def leaves_out(self, path: bytes) -> bool:
        return path in self.links or path in self.skip or self.excludes(path)

    def excludes(self, path: bytes) -> bool:
        """Whether a rule matches the path or one of its parents."""
        if not self.exclude:
            return False
        parts = path.split(b"/")
        heads = [b"/".join(parts[: n + 1]) for n in range(len(parts))]
        return any(
            fnmatch.fnmatchcase(head, rule)
            or (b"/" not in rule and fnmatch.fnmatchcase(part, rule))
            for rule in self.exclude
            for head, part in zip(heads, parts, strict=True)
        )

    @property
    def prune_names(self) -> tuple[bytes, ...]:
        """Names that the walker can skip."""
        return tuple(r for r in self.exclude if b"/" not in r and not _is_wild(r))

    @property
    def prune_paths(self) -> tuple[bytes, ...]:
        exact = (r for r in self.exclude if b"/" in r and not _is_wild(r))
        return (*exact, *self.links, *self.skip)


def _is_wild(rule: bytes) -> bool:
    return any(letter in rule for letter in _WILD)
