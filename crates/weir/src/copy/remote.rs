//! The operations of a copy on a Weir file system, which may be the source or the destination.
//!
//! The threads of a copy are plain threads, not tasks. Each thread blocks until its own request completes. After the
//! user asks to stop, requests in flight may continue for a few seconds, so that they leave no incomplete work.

use super::entry::{Entry, Location, Meta, Xattr};
use crate::failure::Failure;
use crate::locator::join;
use crate::stop::Stop;
use client::{CreateOptions, File, Mount, Node, OpenFlags, XattrMode, in_doubt};
use std::time::Duration;
use tokio::runtime::Handle;
use types::{Attrs, ByteRange, FileKind, Renaming, SetAttrs, SetTime, Status};

/// How long requests in flight may continue after the user asked to stop.
const GRACE: Duration = Duration::from_secs(5);

/// A mounted Weir file system, for use from plain threads.
#[derive(Clone)]
pub struct Weir {
    mount: Mount,
    runtime: Handle,
    stop: Stop,
}

impl Weir {
    /// Returns the Weir file system of `mount` for use in a copy. Its requests run in the tokio runtime `runtime`.
    pub fn new(mount: Mount, runtime: Handle, stop: Stop) -> Self {
        Weir { mount, runtime, stop }
    }

    /// Returns whether `self` and `other` use the same mount.
    pub fn is_same(&self, other: &Weir) -> bool {
        self.mount.is_same(&other.mount)
    }

    /// Runs one request and blocks until its result arrives.
    pub fn wait<T>(&self, request: impl Future<Output = client::Result<T>>) -> Result<T, Failure> {
        self.runtime.block_on(async {
            tokio::select! {
                biased;
                answer = request => Ok(answer?),
                () = async { self.stop.wait().await; tokio::time::sleep(GRACE).await } => Err(Failure::interrupted()),
            }
        })
    }

    /// Looks up a path. If `follow` is set, follows a symlink in the last component.
    pub fn resolve(&self, path: &[Vec<u8>], follow: bool) -> Result<(Location, Meta), Failure> {
        let (node, attrs) = self.wait(self.mount.resolve(path, follow))?;
        let mut shown = vec![b'/'];
        shown.extend(path.join(&b'/'));
        Ok((Location { path: shown, node: Some(node), place: None }, Meta { dev: 0, attrs }))
    }

    /// Returns all entries of a directory.
    pub fn list(&self, dir: &Location) -> Result<Vec<Entry>, Failure> {
        let mut pages = self.mount.readdir(dir.node()?);
        let mut entries = Vec::new();
        while let Some(page) = self.wait(pages.next_page())? {
            self.stop.check()?;
            entries.extend(page.into_iter().map(|entry| Entry {
                location: dir.below(&entry.name, entry.node),
                name: entry.name.to_vec(),
                meta: Meta { dev: 0, attrs: entry.attrs },
            }));
        }
        Ok(entries)
    }

    /// Makes a directory, or returns the existing directory of this name. The returned flag is `false` if the directory
    /// existed.
    pub fn mkdir(&self, dir: &Location, name: &[u8], mode: u32) -> Result<(Location, bool), Failure> {
        let dir_node = dir.node()?;
        let made = self.unless_taken(in_doubt::make(async || self.mount.mkdir(dir_node, name, mode).await))?;
        let path = join(&dir.path, name);
        if let Some((node, _)) = made {
            return Ok((Location { path, node: Some(node), place: None }, true));
        }
        let (node, attrs) = self.wait(self.mount.lookup(dir.node()?, name))?;
        match attrs.kind {
            FileKind::Directory => Ok((Location { path, node: Some(node), place: None }, false)),
            _ => Err(Failure::new("a file that is not a directory has this name")),
        }
    }

    /// Returns the target of a symlink.
    pub fn readlink(&self, link: &Location) -> Result<Vec<u8>, Failure> {
        Ok(self.wait(self.mount.readlink(link.node()?))?.to_vec())
    }

    /// Makes a symlink; returns `None` if the name is taken.
    pub fn symlink(&self, dir: &Location, name: &[u8], target: &[u8]) -> Result<Option<Location>, Failure> {
        let node = dir.node()?;
        let made = self.unless_taken(in_doubt::make(async || self.mount.symlink(node, name, target).await))?;
        Ok(made.map(|(node, _)| dir.below(name, node)))
    }

    /// Makes a fifo, socket or device node; returns `None` if the name is taken.
    pub fn mknod(&self, dir: &Location, name: &[u8], attrs: &Attrs) -> Result<Option<Location>, Failure> {
        let node = dir.node()?;
        let attempt = async || self.mount.mknod(node, name, attrs.kind, 0o600, attrs.rdev).await;
        let made = self.unless_taken(in_doubt::make(attempt))?;
        Ok(made.map(|(node, _)| dir.below(name, node)))
    }

    /// Makes a hard link; returns `None` if the name is taken.
    pub fn link(&self, file: &Location, dir: &Location, name: &[u8]) -> Result<Option<Location>, Failure> {
        let (file, node) = (file.node()?, dir.node()?);
        let made = self.unless_taken(in_doubt::link(&self.mount, file, node, name))?;
        Ok(made.map(|_| dir.below(name, file.clone())))
    }

    fn unless_taken<T>(&self, request: impl Future<Output = client::Result<T>>) -> Result<Option<T>, Failure> {
        self.wait(async {
            match request.await {
                Err(e) if e.is(Status::Exist) => Ok(None),
                other => other.map(Some),
            }
        })
    }

    /// Renames a file inside one directory. Replaces the file that has the new name.
    pub fn rename(&self, dir: &Location, from: &[u8], to: &[u8]) -> Result<(), Failure> {
        let dir = dir.node()?;
        self.wait(async {
            let (node, _) = self.mount.lookup(dir, from).await?;
            in_doubt::rename(&self.mount, node.id, (dir, from), (dir, to), Renaming::Replace).await
        })
    }

    /// Removes a name. Succeeds if the name does not exist.
    pub fn unlink(&self, dir: &Location, name: &[u8]) -> Result<(), Failure> {
        let dir = dir.node()?;
        self.wait(remove_if_there(&self.mount, dir, name))
    }

    /// Sets the attributes of a directory, symlink or special file.
    pub fn apply(&self, location: &Location, attrs: &Attrs) -> Result<(), Failure> {
        let changes = kept(attrs);
        self.wait(self.mount.setattr(location.node()?, &changes)).map(drop)
    }

    /// Returns all xattrs of a file or directory. Adds the prefix `user.` to the names, which the protocol omits.
    pub fn xattrs(&self, location: &Location) -> Result<Vec<Xattr>, Failure> {
        let node = location.node()?;
        self.wait(async {
            let mut found = Vec::new();
            for name in self.mount.listxattr(node).await? {
                match self.mount.getxattr(node, &name).await {
                    Ok(value) => found.push(Xattr { name: [b"user.", &name[..]].concat(), value: value.to_vec() }),
                    Err(e) if e.is(Status::NoXattr) => {}
                    Err(e) => return Err(e),
                }
            }
            Ok(found)
        })
    }

    /// Sets one xattr of a file or directory.
    pub fn set_xattr(&self, location: &Location, xattr: &Xattr) -> Result<(), Failure> {
        let name = xattr.name.strip_prefix(b"user.").unwrap_or(&xattr.name);
        self.wait(self.mount.setxattr(location.node()?, name, &xattr.value, XattrMode::Either))
    }

    /// Opens a source file for reading.
    pub fn open(&self, location: &Location) -> Result<File, Failure> {
        self.wait(self.mount.open(location.node()?, OpenFlags::READ))
    }

    /// Creates a file that only its owner can open.
    pub fn create(&self, dir: &Location, name: &[u8]) -> Result<(File, Location), Failure> {
        let options = CreateOptions { mode: 0o600, exclusive: true, ..CreateOptions::default() };
        let file = self.wait(self.mount.create(dir.node()?, name, options))?;
        let location = dir.below(name, file.node());
        Ok((file, location))
    }

    /// Returns the next data range of the file at or after `from` and below `size`; `None` if only a hole is left.
    pub fn next_data(&self, file: &File, from: u64, size: u64) -> Result<Option<ByteRange>, Failure> {
        if from >= size {
            return Ok(None);
        }
        let found = self.wait(file.next_data(from))?;
        Ok(found.filter(|data| data.offset < size).map(|data| {
            let offset = data.offset.max(from);
            ByteRange { offset, len: data.end().min(size) - offset }
        }))
    }

    /// Closes a source file.
    pub fn close(&self, file: File) -> Result<(), Failure> {
        self.wait(file.close())
    }

    /// Completes a new file whose last written byte ends at `written`: makes its data durable, sets its attributes, and
    /// renames it from its temporary to its final name.
    pub fn finish(
        &self,
        file: File,
        written: u64,
        attrs: &Attrs,
        dir: &Location,
        [temporary, name]: [&[u8]; 2],
    ) -> Result<(), Failure> {
        // Set the size only if the file ends with a hole: every change of the size sends requests to all iods of the
        // file.
        let size = (attrs.size != written).then_some(attrs.size);
        let changes = SetAttrs { size, ..kept(attrs) };
        self.wait(in_doubt::finish(&self.mount, file, changes, dir.node()?, [temporary, name])).map(drop)
    }
}

/// Removes a name. Succeeds if the name does not exist.
pub async fn remove_if_there(mount: &Mount, dir: &Node, name: &[u8]) -> client::Result<()> {
    let removed = match mount.lookup(dir, name).await {
        Ok((node, _)) => in_doubt::remove(mount, node.id, dir, name).await,
        Err(e) => Err(e),
    };
    match removed {
        Err(e) if e.is(Status::NoEnt) => Ok(()),
        other => other,
    }
}

/// Returns the attributes that a copy preserves: always the times, the mode except for symlinks, and for root also the
/// owner.
fn kept(attrs: &Attrs) -> SetAttrs {
    let own = rustix::process::geteuid();
    let link = attrs.kind == FileKind::Symlink;
    // Clear the setuid and setgid bits of the copy if its owner may differ from the source's owner: only root preserves
    // the owner.
    let mode = if own.is_root() || own.as_raw() == attrs.uid { attrs.mode } else { attrs.mode & 0o1777 };
    SetAttrs {
        mode: (!link).then_some(mode),
        uid: own.is_root().then_some(attrs.uid),
        gid: own.is_root().then_some(attrs.gid),
        size: None,
        atime: Some(SetTime::To(attrs.atime)),
        mtime: Some(SetTime::To(attrs.mtime)),
    }
}
