"""What a disk, or a loss of power, makes of the content of a file."""


def empty(content: bytes) -> bytes:
    return b""


def half(content: bytes) -> bytes:
    return content[: len(content) // 2]


def zeroed(content: bytes) -> bytes:
    """A file whose second half a power loss has lost, although its size is right."""
    return half(content).ljust(len(content), b"\0")


def flipped(content: bytes) -> bytes:
    """A file with one bit changed, which may still be readable."""
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


DAMAGES = (empty, half, zeroed, flipped)
