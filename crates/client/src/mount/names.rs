//! Name operations of a mount: lookup, path resolution, create, link, rename and remove.

use super::{Mount, Node};
use crate::compound::{Compound, Failed, Results};
use crate::{Error, Result};
use bytes::Bytes;
use std::collections::VecDeque;
use std::time::Duration;
use types::{Attrs, FileId, FileKind, Renaming, SetAttrs, SetTime, Status, Timestamp};
use wire::nfs4::*;

/// Maximum number of LOOKUPs that the client puts into one COMPOUND.
const LOOKUPS_MAX: usize = 32;
/// Maximum number of symlinks that the client follows on one path, as in Linux.
const SYMLINKS_MAX: u32 = 40;

/// Maximum number of attempts to look up a path. An attempt fails if a file on the path is removed between its LOOKUP
/// and its GETATTR.
const WALKS_MAX: usize = 8;

/// Formats a name for error messages.
pub(crate) fn shown(name: &[u8]) -> String {
    format!("{:?}", String::from_utf8_lossy(name))
}

/// Checks a name that the mgr sent: a caller must not take a name with a slash for a path. An invalid name is a
/// protocol error.
pub(super) fn check_answer(name: &[u8], what: &str) -> Result<()> {
    let refused = |_| Error::protocol(format!("{what}: the mgr sent a name that no file can have: {}", shown(name)));
    types::name::check(name).map_err(refused)
}

/// Returns the access time for a new file: a random time within the next second. If the reply to the create is lost in
/// a restart of the mgr, the client recognizes by this access time that its own request created the file. The time is
/// not in the past, so the access time never precedes the creation.
fn mark() -> Result<Timestamp> {
    let mut random = [0; 4];
    getrandom::fill(&mut random).map_err(|e| Error::usage(format!("the system provides no random numbers: {e}")))?;
    let later = Duration::from_nanos(u64::from(u32::from_be_bytes(random) % 1_000_000_000));
    Ok(Timestamp::from(net::clock::now() + later))
}

fn node(results: &mut Results) -> Result<(Node, Attrs)> {
    let handle = results.handle()?;
    let attrs = results.attrs()?;
    Ok((Node { id: attrs.id, handle }, attrs))
}

/// Marks ESTALE as an error in doubt. The mgr may have executed the operation, and then another client has removed the
/// file before the GETATTR of this request.
fn undone(error: Error) -> Error {
    if error.is(Status::Stale) { error.with_doubt() } else { error }
}

/// Where a lookup of several components failed: the index of the component, and the error.
struct Stopped {
    at: usize,
    error: Error,
}

impl Mount {
    /// Waits until all names created on this mount are durable, also names whose creation the mgr confirmed before it
    /// was durable ([`crate::CreateOptions::unsynced`], [`crate::Durable::Fsync`]).
    ///
    /// # Errors
    /// `Stale` or `Io` if a change was lost because the machine of the mgr lost power.
    pub async fn sync_names(&self) -> Result<()> {
        if self.inner.session.is_soon() {
            return self.inner.session.settle(&self.inner.losses).await;
        }
        let mut outcome = Ok(());
        for inode in self.inner.unsynced() {
            outcome = outcome.and(inode.sync_making().await);
        }
        outcome
    }

    /// Looks up `name` in `dir`, without following a symlink.
    pub async fn lookup(&self, dir: &Node, name: &[u8]) -> Result<(Node, Attrs)> {
        if let Some(absent) = self.absent(dir, name) {
            return Err(absent);
        }
        let found = self.walk(dir, &[name.to_vec()]).await.map_err(|stopped| stopped.error);
        if found.as_ref().is_err_and(|error| error.is(Status::NoEnt)) {
            self.missed(dir);
        }
        found
    }

    /// Looks up a path from the root, in as few round trips as possible. Follows at most 40 symlinks. The target of an
    /// absolute symlink starts at the root of this file system. Follows a symlink in the last component only if
    /// `follow` is set.
    pub async fn resolve(&self, path: &[Vec<u8>], follow: bool) -> Result<(Node, Attrs)> {
        let mut done: Vec<Vec<u8>> = Vec::new();
        let mut todo: VecDeque<Vec<u8>> = path.iter().cloned().collect();
        let mut symlinks = 0;
        loop {
            // Look up the components before the next "..". A ".." cancels the component before it only if this
            // component is not a symlink, and only a lookup shows this.
            let run = todo.iter().take_while(|c| *c != b"..").count();
            let whole: Vec<Vec<u8>> = done.iter().cloned().chain(todo.iter().take(run).cloned()).collect();
            let at_end = run == todo.len();
            let link = match self.walk(&self.root(), &whole).await {
                Ok((node, attrs)) if attrs.kind == FileKind::Symlink && (follow || !at_end) => (whole.len(), node),
                Ok(found) if at_end => return Ok(found),
                Ok(_) => {
                    done = whole;
                    done.pop();
                    todo.drain(..=run);
                    continue;
                }
                Err(stopped) => {
                    let candidate =
                        stopped.at > 0 && (stopped.error.is(Status::Symlink) || stopped.error.is(Status::NotDir));
                    if !candidate {
                        return Err(stopped.error);
                    }
                    let (node, attrs) =
                        self.walk(&self.root(), &whole[..stopped.at]).await.map_err(|stopped| stopped.error)?;
                    if attrs.kind != FileKind::Symlink {
                        return Err(stopped.error);
                    }
                    (stopped.at, node)
                }
            };
            symlinks += 1;
            if symlinks > SYMLINKS_MAX {
                let what = format!("walking to {}: more than {SYMLINKS_MAX} symbolic links", shown(&path.join(&b'/')));
                return Err(Error::status(Status::Symlink, what));
            }
            let (length, node) = link;
            let target = self.readlink(&node).await?;
            let consumed = length - done.len();
            todo.drain(..consumed);
            let parts = target.split(|b| *b == b'/').filter(|c| !c.is_empty() && *c != b".").map(<[u8]>::to_vec);
            for part in parts.collect::<Vec<_>>().into_iter().rev() {
                todo.push_front(part);
            }
            done = if target.starts_with(b"/") { Vec::new() } else { whole[..length - 1].to_vec() };
        }
    }

    /// Looks up the components of a path with as many LOOKUPs in one round trip as possible. If a file on the path is
    /// removed between its LOOKUP and its GETATTR, repeats the lookup.
    async fn walk(&self, from: &Node, path: &[Vec<u8>]) -> std::result::Result<(Node, Attrs), Stopped> {
        for _ in 1..WALKS_MAX {
            match self.walk_once(from, path).await {
                Err(stopped) if stopped.at > 0 && stopped.error.is(Status::Stale) => {}
                other => return other,
            }
        }
        self.walk_once(from, path).await
    }

    async fn walk_once(&self, from: &Node, path: &[Vec<u8>]) -> std::result::Result<(Node, Attrs), Stopped> {
        let mut at = 0;
        let mut here = from.clone();
        loop {
            let part = &path[at..path.len().min(at + LOOKUPS_MAX)];
            let name = path[..at + part.len()].join(&b'/');
            let mut compound = self.compound(format!("looking up {}", shown(&name)));
            self.arrive(&mut compound, &here);
            for name in part {
                compound.op(OP_LOOKUP, &LOOKUP4args { objname: Bytes::copy_from_slice(name) });
            }
            compound.getfh().getattr();
            let stopped = |at, error| Stopped { at, error };
            let stamp = self.inner.stamp();
            let mut results = self.inner.session.call(compound).await.map_err(|e| stopped(at, e))?;
            results.arrived().map_err(|e| stopped(at, e))?;
            for _ in part {
                results.done(&[OP_LOOKUP]).map_err(|e| stopped(at, e))?;
                at += 1;
            }
            let (found, attrs) = node(&mut results).map_err(|e| stopped(at, e))?;
            if at == path.len() {
                let attrs = self.inner.open_inode(found.id).map_or(attrs, |inode| inode.met(attrs, stamp));
                return Ok((found, attrs));
            }
            here = found;
        }
    }

    async fn create_node(
        &self,
        dir: &Node,
        name: &[u8],
        objtype: createtype4,
        attrs: SetAttrs,
        what: &str,
    ) -> Result<(Node, Attrs)> {
        let mark = mark()?;
        let attrs = SetAttrs { atime: Some(SetTime::To(mark)), ..attrs };
        let mut compound = self.compound(format!("{what} {}", shown(name))).once();
        let objname = Bytes::copy_from_slice(name);
        let createattrs = nfs::attrs::encode_set(&attrs);
        self.arrive(&mut compound, dir);
        compound.op(OP_CREATE, &CREATE4args { objtype, objname, createattrs }).getfh().getattr();
        let making = self.inner.makes(dir, name);
        let mut results = match self.inner.session.call(compound).await {
            // If the found file has the random access time `mark`, this request created the file, so the create has
            // succeeded.
            Err(error) if error.is_in_doubt() => match self.lookup(dir, name).await {
                Ok(found) if found.1.atime == mark => return Ok(found),
                _ => return Err(error),
            },
            other => other?,
        };
        making.answered();
        results.arrived()?;
        results.take::<CREATE4resok>(OP_CREATE)?;
        node(&mut results).map_err(undone)
    }

    /// Creates a directory with these permission bits; the client applies no umask.
    pub async fn mkdir(&self, dir: &Node, name: &[u8], mode: u32) -> Result<(Node, Attrs)> {
        let attrs = SetAttrs { mode: Some(mode), ..SetAttrs::default() };
        self.create_node(dir, name, createtype4::NF4DIR, attrs, "making directory").await
    }

    /// Creates a symbolic link with this target.
    pub async fn symlink(&self, dir: &Node, name: &[u8], target: &[u8]) -> Result<(Node, Attrs)> {
        let kind = createtype4::NF4LNK(Bytes::copy_from_slice(target));
        let attrs = SetAttrs { mode: Some(0o777), ..SetAttrs::default() };
        self.create_node(dir, name, kind, attrs, "making symbolic link").await
    }

    /// Creates a device node, socket or named pipe. `rdev` contains the major and minor number of a device, and is
    /// ignored for sockets and named pipes.
    pub async fn mknod(
        &self,
        dir: &Node,
        name: &[u8],
        kind: FileKind,
        mode: u32,
        rdev: (u32, u32),
    ) -> Result<(Node, Attrs)> {
        let numbers = specdata4 { specdata1: rdev.0, specdata2: rdev.1 };
        let kind = match kind {
            FileKind::Block => createtype4::NF4BLK(numbers),
            FileKind::Char => createtype4::NF4CHR(numbers),
            FileKind::Socket => createtype4::NF4SOCK,
            FileKind::Fifo => createtype4::NF4FIFO,
            FileKind::Regular | FileKind::Directory | FileKind::Symlink => {
                return Err(Error::usage("mknod makes devices, sockets and pipes only"));
            }
        };
        let attrs = SetAttrs { mode: Some(mode), ..SetAttrs::default() };
        self.create_node(dir, name, kind, attrs, "making special file").await
    }

    /// Adds a hard link to a file that is not a directory. Returns the attributes of the file.
    pub async fn link(&self, node: &Node, dir: &Node, name: &[u8]) -> Result<Attrs> {
        let mut compound = self.compound(format!("linking {}", shown(name))).once();
        self.arrive(&mut compound, node).void(OP_SAVEFH);
        self.arrive(&mut compound, dir);
        compound.op(OP_LINK, &LINK4args { newname: Bytes::copy_from_slice(name) });
        compound.void(OP_RESTOREFH).getattr();
        let (stamp, making) = (self.inner.stamp(), self.inner.makes(dir, name));
        let mut results = self.inner.session.call(compound).await?;
        making.answered();
        results.arrived()?;
        results.done(&[OP_SAVEFH])?;
        results.arrived()?;
        results.take::<LINK4resok>(OP_LINK)?;
        results.done(&[OP_RESTOREFH])?;
        let attrs = results.attrs().map_err(undone)?;
        Ok(self.inner.open_inode(node.id).map_or(attrs, |inode| inode.met(attrs, stamp)))
    }

    /// Renames a file. Replaces an existing file `to_name`, as rename(2) does.
    pub async fn rename(&self, from_dir: &Node, from_name: &[u8], to_dir: &Node, to_name: &[u8]) -> Result<()> {
        self.rename_as((from_dir, from_name), (to_dir, to_name), Renaming::Replace).await
    }

    /// Renames a file. `from` and `to` are pairs of a directory and a name in it. `how` says what happens to a file
    /// that already has the new name.
    ///
    /// # Errors
    /// `Exist` and `NoEnt` as documented for `how`. `AttrNotSupp` if the mgr supports only [`Renaming::Replace`].
    pub async fn rename_as(&self, from: (&Node, &[u8]), to: (&Node, &[u8]), how: Renaming) -> Result<()> {
        let what = match how {
            Renaming::Exchange => format!("exchanging {} and {}", shown(from.1), shown(to.1)),
            Renaming::Replace | Renaming::NoReplace => format!("renaming {} to {}", shown(from.1), shown(to.1)),
        };
        let mut compound = self.compound(what).once();
        self.arrive(&mut compound, from.0).void(OP_SAVEFH);
        self.arrive(&mut compound, to.0);
        append_renaming(&mut compound, from.1, to.1, how);
        let making = self.inner.makes(to.0, to.1);
        let removal = if how == Renaming::Exchange { None } else { self.inner.removes(from.0, from.1) };
        let mut results = self.inner.session.call(compound).await?;
        making.answered();
        take_rename(&mut results, how)?;
        self.inner.removed(removal);
        Ok(())
    }

    /// Removes a name of a file or of an empty directory.
    pub async fn remove(&self, dir: &Node, name: &[u8]) -> Result<()> {
        self.remove_telling(dir, name).await.map(|_| ())
    }

    /// Removes a name like [`Mount::remove`]. Also returns the attributes of the directory after the removal, if the
    /// reply to the removal contains them.
    pub async fn remove_telling(&self, dir: &Node, name: &[u8]) -> Result<Option<Attrs>> {
        let mut compound = self.compound(format!("removing {}", shown(name))).once();
        let args = REMOVE4args { target: Bytes::copy_from_slice(name) };
        self.arrive(&mut compound, dir).op(OP_REMOVE, &args).getattr();
        let removal = self.inner.removes(dir, name);
        let mut results = self.inner.session.call(compound).await?;
        results.arrived()?;
        results.take::<REMOVE4resok>(OP_REMOVE)?;
        self.inner.removed(removal);
        Ok(results.attrs().ok())
    }

    /// Removes a directory. Returns the id of the removed directory. Also returns the attributes of the parent
    /// directory after the removal, if the reply contains them.
    pub async fn rmdir_telling(&self, dir: &Node, name: &[u8]) -> Result<(FileId, Option<Attrs>)> {
        let mut compound = self.compound(format!("removing {}", shown(name))).once();
        let target = Bytes::copy_from_slice(name);
        self.arrive(&mut compound, dir).void(OP_SAVEFH);
        compound.op(OP_LOOKUP, &LOOKUP4args { objname: target.clone() }).getattr();
        compound.void(OP_RESTOREFH).op(OP_REMOVE, &REMOVE4args { target }).getattr();
        let removal = self.inner.removes(dir, name);
        let mut results = self.inner.session.call(compound).await?;
        results.arrived()?;
        results.done(&[OP_SAVEFH, OP_LOOKUP])?;
        let id = results.attrs()?.id;
        results.done(&[OP_RESTOREFH])?;
        results.take::<REMOVE4resok>(OP_REMOVE)?;
        self.inner.removed(removal);
        Ok((id, results.attrs().ok()))
    }

    /// Returns the target of a symbolic link.
    pub async fn readlink(&self, node: &Node) -> Result<Bytes> {
        let mut compound = self.compound("reading a symbolic link");
        compound.putfh(&node.handle).void(OP_READLINK);
        let mut results = self.inner.session.call(compound).await?;
        match results.done(&[OP_PUTFH]) {
            Ok(()) => results.take::<READLINK4resok>(OP_READLINK).map(|got| got.link),
            Err(error) => Err(error),
        }
    }
}

/// Appends a RENAME to a COMPOUND. `from` and `to` are pairs of a directory and a name in it. The directory in `to`
/// becomes the current filehandle.
pub(crate) fn append_rename(compound: &mut Compound, from: (&Node, &[u8]), to: (&Node, &[u8]), how: Renaming) {
    compound.putfh(&from.0.handle).void(OP_SAVEFH).putfh(&to.0.handle);
    append_renaming(compound, from.1, to.1, how);
}

/// Appends to a COMPOUND a RENAME from the directory in the saved filehandle to the directory in the current
/// filehandle.
fn append_renaming(compound: &mut Compound, from: &[u8], to: &[u8], how: Renaming) {
    if how != Renaming::Replace {
        compound.op(OP_VERIFY, &VERIFY4args { obj_attributes: nfs::attrs::encode_renaming(how) });
    }
    let (oldname, newname) = (Bytes::copy_from_slice(from), Bytes::copy_from_slice(to));
    compound.op(OP_RENAME, &RENAME4args { oldname, newname });
}

/// Takes and checks the results of [`append_rename`].
pub(crate) fn take_rename(results: &mut Results, how: Renaming) -> Result<()> {
    results.arrived()?;
    results.done(&[OP_SAVEFH])?;
    results.arrived()?;
    if how != Renaming::Replace {
        results.done(&[OP_VERIFY])?;
    }
    match results.raw::<RENAME4resok>(OP_RENAME) {
        Ok(_) => Ok(()),
        Err(failed @ (Failed::Nfs(_) | Failed::Malformed)) => Err(results.error(&failed)),
    }
}
