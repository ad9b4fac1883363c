"""Files of a sandbox: written and read whole, or streamed from and to files and folders here."""

import asyncio
import os
from typing import TYPE_CHECKING, BinaryIO

from sandgate._local import (
    FolderUpload,
    LocalPath,
    Progress,
    Upload,
    open_source,
    parse_length,
    replacing,
    unpacking,
)
from sandgate._wire.feeds import file_changes
from sandgate._wire.file_errors import check_is_file
from sandgate._wire.files import FileCalls
from sandgate._wire.paging import collect, exists, list_sorted
from sandgate.errors import Unauthenticated

if TYPE_CHECKING:
    import builtins
    from collections.abc import AsyncGenerator, Callable

    from sandgate._async_transport import AsyncTransport
    from sandgate._wire.lease import Lease
    from sandgate._wire.message import Call
    from sandgate.types import FileChange, FileInfo, Match


class AsyncFiles:
    """The files of one sandbox; relative paths start at its working directory.

    Errors about a path are also the built-in ones: FileNotFoundError, PermissionError, and so on.
    """

    def __init__(self, transport: "AsyncTransport", *, lease: "Lease") -> None:
        self._transport = transport
        self._lease = lease

    async def write(self, path: str, content: str | bytes | BinaryIO) -> None:
        """Replace a file, its parents made where they are missing; text is written as UTF-8.

        A file object, opened in binary mode, is sent from where it stands to its end and
        never held whole; it stays open.
        """
        body = content.encode() if isinstance(content, str) else content
        sent = body if isinstance(body, bytes) else Upload(body)
        await self._transport.perform(
            self._lease.authorized(lambda route: FileCalls(route).write(path, sent))
        )

    async def read(self, path: str) -> bytes:
        """Return the content of a file."""
        return await self._transport.perform(
            self._lease.authorized(lambda route: FileCalls(route).read(path))
        )

    async def read_text(self, path: str) -> str:
        """Return the content of a file as UTF-8 text; raise UnicodeDecodeError when it is none."""
        return (await self.read(path)).decode()

    async def upload(
        self, source: LocalPath | BinaryIO, path: str, *, progress: Progress | None = None
    ) -> None:
        """Copy a file of this machine, or the rest of a file object, into the sandbox."""
        from sandgate._async_sandbox.threads import in_threads

        if isinstance(source, str | os.PathLike):
            async with in_threads(open_source(source)) as content:
                await self.upload(content, path, progress=progress)
            return
        body = Upload(source, progress)
        await self._transport.perform(
            self._lease.authorized(lambda route: FileCalls(route).write(path, body))
        )

    async def download(
        self, path: str, *, to: LocalPath | BinaryIO, progress: Progress | None = None
    ) -> int:
        """Copy a file to this machine, or into a file object; return its size in bytes.

        A file of this machine is replaced when all of it has come.
        """
        from sandgate._async_sandbox.threads import in_threads

        if isinstance(to, str | os.PathLike):
            async with in_threads(replacing(to)) as content:
                return await self.download(path, to=content, progress=progress)
        return await self._copy(path, FileCalls.read, to, progress)

    async def upload_folder(
        self, source: LocalPath, path: str = "", *, progress: Progress | None = None
    ) -> None:
        """Copy what is in a folder of this machine into a directory of the sandbox.

        Nothing is changed there until all of it has arrived.
        """
        body = FolderUpload(source, progress)
        await self._transport.perform(
            self._lease.authorized(lambda route: FileCalls(route).extract(path, body))
        )

    async def download_folder(
        self, path: str = "", *, to: LocalPath, progress: Progress | None = None
    ) -> None:
        """Copy what is in a directory of the sandbox into a folder of this machine.

        Nothing is written there until all of it has come, and never outside of that folder.
        """
        from sandgate._async_sandbox.threads import in_threads

        async with in_threads(unpacking(to)) as content:
            await self._copy(path, FileCalls.archive, content, progress)

    async def list(self, path: str = "", *, recursive: bool = False) -> "builtins.list[FileInfo]":
        """Return the entries of a directory, sorted by name; "" is the working directory."""
        return await self._transport.perform(list_sorted(self._lease, path, recursive=recursive))

    async def stat(self, path: str) -> "FileInfo":
        """Return what is known of a file or a directory."""
        return await self._transport.perform(
            self._lease.authorized(lambda route: FileCalls(route).stat(path))
        )

    async def exists(self, path: str) -> bool:
        """Return whether the path exists."""
        return await self._transport.perform(exists(self._lease, path))

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        """Remove a file or an empty directory; with `recursive` a directory with all in it."""
        await self._transport.perform(
            self._lease.authorized(lambda route: FileCalls(route).remove(path, recursive=recursive))
        )

    async def move(self, path: str, to: str, *, overwrite: bool = False) -> None:
        """Rename a file or a directory; raise FileExistsError where something is at `to`."""
        await self._transport.perform(
            self._lease.authorized(
                lambda route: FileCalls(route).move(path, to, overwrite=overwrite)
            )
        )

    async def mkdir(self, path: str, *, mode: int | None = None) -> bool:
        """Make a directory with its parents; return False where it was there already."""
        return await self._transport.perform(
            self._lease.authorized(lambda route: FileCalls(route).mkdir(path, mode=mode))
        )

    async def glob(self, pattern: str, *, path: str = "") -> "builtins.list[FileInfo]":
        """Return what is below a directory under names like `src/**/*.py`, from there."""
        return await self._transport.perform(
            collect(
                self._lease,
                lambda calls, cursor: calls.list_page(
                    path, recursive=False, pattern=pattern, cursor=cursor
                ),
            )
        )

    async def grep(
        self, text: str, *, path: str = "", pattern: str | None = None, limit: int | None = None
    ) -> "builtins.list[Match]":
        """Return the lines with this very text in the files below a directory, or in one file.

        `pattern` leaves other names out, as in `*.py`; binary files are passed over.
        """
        return await self._transport.perform(
            collect(
                self._lease,
                lambda calls, cursor: calls.search(path, text, pattern=pattern, cursor=cursor),
                limit=limit,
            )
        )

    def watch(
        self, path: str = "", *, recursive: bool = False
    ) -> "AsyncGenerator[FileChange, None]":
        """Yield changes in a directory, until it is gone or the iterator is closed.

        Where changes were lost, as after a lost connection, `overflow` says to list anew.
        """
        return self._transport.follow(file_changes(self._lease, path, recursive=recursive))

    async def _copy(
        self,
        path: str,
        build: "Callable[[FileCalls, str], Call[bytes]]",
        to: BinaryIO,
        progress: Progress | None,
    ) -> int:
        route = self._lease.route()
        try:
            return await self._receive(build(FileCalls(route), path), path, to, progress)
        except Unauthenticated as error:
            await self._transport.perform(self._lease.after_401(error, route.token))
        call = build(FileCalls(self._lease.route()), path)
        return await self._receive(call, path, to, progress)

    async def _receive(
        self, call: "Call[bytes]", path: str, to: BinaryIO, progress: Progress | None
    ) -> int:
        done = 0
        async with self._transport.open(call) as response:
            check_is_file(response.headers.get("content-type"), path)
            total = parse_length(response.headers.get("content-length"))
            async for chunk in self._transport.chunks(response, call.request):
                await asyncio.to_thread(to.write, chunk)
                done += len(chunk)
                if progress is not None:
                    progress(done, total)
        return done
