//! A mounted file system: names and attributes.

use crate::{Counters, Error, File, Options, Placement, Result, Target};
use bytes::Bytes;
use types::{Attrs, FileId, FileKind, SetAttrs, StatFs};

/// A file system in use. Clones share everything.
#[derive(Clone)]
pub struct Mount {}

/// A file of any kind, by identity: stays valid when it is renamed, and becomes stale when it is gone.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Node {
    /// Inode number.
    pub id: FileId,
    /// The server's filehandle.
    pub handle: Bytes,
}

/// How to open a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OpenFlags {
    /// Allow reading.
    pub read: bool,
    /// Allow writing.
    pub write: bool,
    /// Cut to length 0 while opening; needs `write`.
    pub truncate: bool,
}

impl OpenFlags {
    /// For reading only.
    pub const READ: OpenFlags = OpenFlags { read: true, write: false, truncate: false };
    /// For writing only.
    pub const WRITE: OpenFlags = OpenFlags { read: false, write: true, truncate: false };
    /// For reading and writing.
    pub const READ_WRITE: OpenFlags = OpenFlags { read: true, write: true, truncate: false };
}

/// How to create a file; it is opened for reading and writing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CreateOptions {
    /// Permission bits of a new file, at most 0o7777; no umask is applied.
    pub mode: u32,
    /// Fail with `Exist` when the name is taken. Safe to repeat after a lost answer.
    pub exclusive: bool,
    /// Cut a file that exists already to length 0.
    pub truncate: bool,
    /// Owner of a new file, when not the caller.
    pub owner: Option<(u32, u32)>,
}

impl Default for CreateOptions {
    fn default() -> Self {
        CreateOptions { mode: 0o644, exclusive: false, truncate: false, owner: None }
    }
}

/// A directory entry with what it names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The name.
    pub name: Bytes,
    /// Position to continue after, for [`Mount::readdir_from`].
    pub cookie: u64,
    /// What it names.
    pub node: Node,
    /// Its attributes.
    pub attrs: Attrs,
}

/// A directory being read, page by page.
pub struct ReadDir {}

impl ReadDir {
    /// The next entries, in the order of their cookies; `None` at the end. `.` and `..` are never among them. Entries
    /// that come or go meanwhile may or may not be seen; all others are seen exactly once.
    pub async fn next_page(&mut self) -> Result<Option<Vec<Entry>>> {
        pending()
    }
}

fn pending<T>() -> Result<T> {
    Err(Error::protocol("this build cannot reach a server"))
}

#[allow(unused_variables)]
impl Mount {
    /// Mounts the file system that `target` is on; its path plays no part.
    pub async fn connect(target: &Target, options: Options) -> Result<Mount> {
        pending()
    }

    /// Ends the session. Files still open are closed by the server; uncommitted data of theirs are lost.
    pub async fn disconnect(self) -> Result<()> {
        pending()
    }

    /// The root directory.
    pub fn root(&self) -> Node {
        Node { id: FileId::ROOT, handle: Bytes::new() }
    }

    /// What `name` is in `dir`; symlinks are not followed.
    pub async fn lookup(&self, dir: &Node, name: &[u8]) -> Result<(Node, Attrs)> {
        pending()
    }

    /// Walks components from the root, in as few round trips as possible. Symlinks on the way are followed (at most 40,
    /// absolute ones from the root of this file system); one at the end only when `follow` is set.
    pub async fn resolve(&self, path: &[Vec<u8>], follow: bool) -> Result<(Node, Attrs)> {
        pending()
    }

    /// The attributes of a file, fresh from the server.
    pub async fn getattr(&self, node: &Node) -> Result<Attrs> {
        pending()
    }

    /// Changes attributes and answers all of them as they are afterwards. A size is set for everybody; whoever has the
    /// file open here with unwritten data should call [`File::set_len`] instead.
    pub async fn setattr(&self, node: &Node, changes: &SetAttrs) -> Result<Attrs> {
        pending()
    }

    /// Reads a directory from its beginning.
    pub fn readdir(&self, dir: &Node) -> ReadDir {
        self.readdir_from(dir, 0)
    }

    /// Reads a directory after the entry with this cookie (0: from the beginning).
    pub fn readdir_from(&self, dir: &Node, cookie: u64) -> ReadDir {
        ReadDir {}
    }

    /// Makes a directory.
    pub async fn mkdir(&self, dir: &Node, name: &[u8], mode: u32) -> Result<(Node, Attrs)> {
        pending()
    }

    /// Makes a symbolic link with this target.
    pub async fn symlink(&self, dir: &Node, name: &[u8], target: &[u8]) -> Result<(Node, Attrs)> {
        pending()
    }

    /// Makes a device node, socket or named pipe; `rdev` is (major, minor) of devices, else ignored.
    pub async fn mknod(
        &self,
        dir: &Node,
        name: &[u8],
        kind: FileKind,
        mode: u32,
        rdev: (u32, u32),
    ) -> Result<(Node, Attrs)> {
        pending()
    }

    /// Gives a file that is no directory one more name.
    pub async fn link(&self, node: &Node, dir: &Node, name: &[u8]) -> Result<Attrs> {
        pending()
    }

    /// Moves a name, replacing what `to_name` was, as rename(2) does.
    pub async fn rename(&self, from_dir: &Node, from_name: &[u8], to_dir: &Node, to_name: &[u8]) -> Result<()> {
        pending()
    }

    /// Removes a name of a file or of an empty directory.
    pub async fn remove(&self, dir: &Node, name: &[u8]) -> Result<()> {
        pending()
    }

    /// The target of a symbolic link.
    pub async fn readlink(&self, node: &Node) -> Result<Bytes> {
        pending()
    }

    /// The value of an extended attribute; `name` without its `user.`, here and in the following.
    pub async fn getxattr(&self, node: &Node, name: &[u8]) -> Result<Bytes> {
        pending()
    }

    /// Sets an extended attribute, whether it is there or not.
    pub async fn setxattr(&self, node: &Node, name: &[u8], value: &[u8]) -> Result<()> {
        pending()
    }

    /// The names of all extended attributes.
    pub async fn listxattr(&self, node: &Node) -> Result<Vec<Bytes>> {
        pending()
    }

    /// Removes an extended attribute.
    pub async fn removexattr(&self, node: &Node, name: &[u8]) -> Result<()> {
        pending()
    }

    /// Capacity of the file system.
    pub async fn statfs(&self) -> Result<StatFs> {
        pending()
    }

    /// Which of the ACCESS4 bits in `wanted` (RFC 8881 §18.1) the caller has.
    pub async fn access(&self, node: &Node, wanted: u32) -> Result<u32> {
        pending()
    }

    /// Opens a regular file.
    pub async fn open(&self, node: &Node, flags: OpenFlags) -> Result<File> {
        pending()
    }

    /// Opens the regular file `name` in `dir`, creating it when it is missing.
    pub async fn create(&self, dir: &Node, name: &[u8], options: CreateOptions) -> Result<File> {
        pending()
    }

    /// Where the bytes of a regular file live.
    pub async fn placement(&self, node: &Node) -> Result<Placement> {
        pending()
    }

    /// What this mount has done so far.
    pub fn counters(&self) -> Counters {
        Counters::default()
    }
}
