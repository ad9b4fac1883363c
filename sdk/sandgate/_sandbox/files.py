"""Files of a sandbox: written and read whole, or streamed from and to file objects."""

from typing import TYPE_CHECKING, BinaryIO

from sandgate._wire import files

if TYPE_CHECKING:
    import builtins

    from sandgate._transport import Transport
    from sandgate._wire.route import Route
    from sandgate.types import FileInfo


class Files:
    """The files of one sandbox; relative paths start at its working directory.

    Errors about a path are also the built-in ones: FileNotFoundError, PermissionError, and so on.
    """

    def __init__(self, transport: "Transport", *, route: "Route") -> None:
        self._transport = transport
        self._route = route

    def write(self, path: str, content: str | bytes | BinaryIO) -> None:
        """Replace a file; text is written as UTF-8.

        A file object, opened in binary mode, is sent from where it stands to its end and
        never held whole; it stays open.
        """
        if isinstance(content, str):
            content = content.encode()
        self._transport.call(files.build_write(path, content, route=self._route))

    def read(self, path: str) -> bytes:
        """Return the content of a file."""
        return self._transport.call(files.build_read(path, route=self._route))

    def read_text(self, path: str) -> str:
        """Return the content of a file as UTF-8 text; raise UnicodeDecodeError when it is none."""
        return self.read(path).decode()

    def download(self, path: str, *, to: BinaryIO) -> int:
        """Copy a file into a file object without holding it whole; return its size in bytes."""
        size = 0
        with self._transport.stream(files.build_read(path, route=self._route)) as chunks:
            for chunk in chunks:
                to.write(chunk)
                size += len(chunk)
        return size

    def list(self, path: str = "") -> "builtins.list[FileInfo]":
        """Return the entries of a directory, sorted by name; "" is the working directory."""
        return self._transport.call(files.build_list(path, route=self._route))

    def exists(self, path: str) -> bool:
        """Return whether the path exists."""
        return self._transport.call(files.build_exists(path, route=self._route))
