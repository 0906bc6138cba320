//! The volume of a mgr: the namespace, the iods and the layouts, which together implement the operations of the NFS
//! server's file system.

mod damaged;
mod data;
mod fencing;
pub(crate) mod gathering;
mod inline;
mod layouts;
mod lost;
mod orphans;
mod policy;
mod queue;
mod sizes;
mod space;
pub(crate) mod swap_layout;

use crate::background::scrub::Scrubs;
use crate::clients::Clients;
use crate::counters::Counting;
use crate::devices::Devices;
use crate::exports::Exports;
use crate::gathered_writes::GatheredWrites;
use crate::grants::Grants;
use crate::intents::Intents;
use crate::iods::Iods;
use crate::kinds::{Kinds, Known, Lifetimes, Opened};
use crate::locks::FileLocks;
use crate::moves::Moves;
use crate::queue::Queue;
use crate::rights::Rights;
use crate::space::Space;
use damaged::Damaged;
pub(crate) use damaged::Suspects;
use layout::{Origin, Policy, Settings, Unassigned};
use lost::NativeClients;
use meta::{Embedded, FileInfo, Layout, Namespace};
use nfs::exports::Place;
use nfs::fs::Ctx;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use tokio::sync::Notify;
use tokio::time::Instant;
use types::{FileId, FileKind, Status, Timestamp};
use xdr::Xdr;

/// The state of the mgr that the operations of the file system use.
#[derive(Debug)]
pub(crate) struct Volume {
    pub(crate) namespace: Arc<Namespace<Embedded>>,
    /// A number that changes when the host may have lost power. Changes of files that were not durable before the power
    /// failure may be lost.
    pub(crate) boot: u64,
    /// Inode number below which the mgr keeps objects even if their file does not exist. A recovered older copy of the
    /// store may lack files with such inode numbers.
    pub(crate) kept_below: FileId,
    pub(crate) iods: Arc<Iods>,
    pub(crate) kinds: Arc<Kinds>,
    pub(crate) clients: Clients,
    pub(crate) grants: Grants,
    pub(crate) intents: Intents,
    pub(crate) scrubs: Scrubs,
    pub(crate) locks: FileLocks,
    /// For each file: the lock that a task holds while it moves the inline bytes of the file to objects.
    pub(crate) moving: FileLocks,
    /// Files whose objects the mgr is moving or deleting.
    pub(crate) moves: Moves,
    /// Largest size that the mgr allows for an inline file, in bytes.
    pub(crate) inline_max: u64,
    /// Cache of the allocated space of files with holes.
    pub(crate) space: Space,
    /// Small writes that the mgr holds in memory.
    pub(crate) gathered: GatheredWrites,
    pub(crate) counters: Counting,
    /// The layout policy of files whose directory and export set none.
    pub(crate) policy: Policy,
    pub(crate) lease_secs: u32,
    /// Lifetimes of the capabilities and filehandles that the mgr grants for the direct path.
    pub(crate) lifetimes: Lifetimes,
    /// The capabilities and filehandles for the direct path that may still be valid.
    pub(crate) rights: Rights,
    /// Measures how long requests wait before the mgr executes them.
    pub(crate) queue: Arc<Mutex<Queue>>,
    /// When this mgr started.
    pub(crate) begun: Instant,
    /// The directories that clients may mount, with the conditions of access.
    pub(crate) exports: Exports,
    pub(crate) devices: Devices,
    pub(crate) native: NativeClients,
    /// Files in which requests found lost or damaged bytes.
    pub(crate) damaged: Damaged,
    /// Notified when a file is added to the deletion list: the files whose objects the mgr must delete.
    pub(crate) doomed: Notify,
    /// Whether there may be files without a name that no client has open, from before the start of the mgr or after a
    /// failed deletion.
    pub(crate) orphans_left: AtomicBool,
}

impl Volume {
    /// Returns the layout record of a new file in `dir`. While too few iods are up, the record contains the policy
    /// instead. The mgr then chooses the iods at the first use of the file.
    pub(crate) fn layout_in(&self, place: Place, dir: FileId) -> Result<Layout, Status> {
        let xattrs = self.namespace.effective_xattrs(dir, layout::policy::PREFIX.as_bytes())?;
        let xattrs = xattrs.iter().map(|(name, value)| (&name[..], &value[..]));
        let own = Settings::of_xattrs(Origin::Directory, xattrs, |e| {
            tracing::warn!(dir = dir.0, "ignored an invalid policy attribute of a directory: {e}");
        });
        let policy = self.exports.rule(place).policy.with(&own);
        match self.choose(&policy) {
            Ok(layout) if self.inline_max > 0 => Ok(layout.inline()),
            Ok(layout) => Ok(layout),
            Err(Status::Delay) => Ok(Layout { kind: Layout::UNASSIGNED, body: Unassigned::from(&policy).to_bytes() }),
            Err(e) => Err(e),
        }
    }

    /// Returns the namespace in the mode that the client requested: each change either waits until it is durable, or
    /// does not wait.
    pub(crate) fn names(&self, ctx: &Ctx) -> Namespace<Embedded> {
        if ctx.soon { self.namespace.soon() } else { self.namespace.waiting() }
    }

    fn choose(&self, policy: &Policy) -> Result<Layout, Status> {
        self.kinds.make(&self.iods, policy)
    }

    /// Returns the state of a regular file. Fails with `IsDir`, `Symlink` or `WrongType` for other inodes.
    pub(crate) fn regular(&self, file: FileId) -> Result<FileInfo, Status> {
        let info = self.namespace.info(file)?;
        match info.attrs.kind {
            FileKind::Regular => Ok(info),
            FileKind::Directory => Err(Status::IsDir),
            FileKind::Symlink => Err(Status::Symlink),
            _ => Err(Status::WrongType),
        }
    }

    /// Returns the objects of a file; `None` while the bytes of the file are inline in its metadata.
    pub(crate) fn objects(&self, info: &FileInfo) -> Result<Option<Opened<'_>>, Status> {
        self.stored(info.into(), info.layout.as_ref())
    }

    /// Returns the objects that `layout` names; `None` if the layout record has only a policy, or names objects that do
    /// not have the bytes of the file yet.
    pub(crate) fn stored(&self, known: Known, layout: Option<&Layout>) -> Result<Option<Opened<'_>>, Status> {
        let layout = layout.filter(|layout| layout.is_final());
        layout.map(|layout| self.kinds.open(&self.iods, known, layout)).transpose()
    }

    /// Returns the objects that a file has, or will have when its inline bytes move to objects; `None` if the mgr has
    /// not chosen the objects yet.
    pub(crate) fn objects_to_be(&self, info: &FileInfo) -> Result<Option<Opened<'_>>, Status> {
        let known = Known::nothing(info.attrs.id, info.generation);
        self.decided(info)?.map(|layout| self.kinds.open(&self.iods, known, &layout)).transpose()
    }

    /// Returns whether the bytes of a file are in objects, and not inline in its metadata.
    pub(crate) fn is_in_objects(&self, info: &FileInfo) -> bool {
        info.layout.as_ref().is_some_and(Layout::is_final)
    }

    /// Returns the objects of a file. If the bytes of the file are inline, first moves them to the objects.
    pub(crate) async fn objects_now(&self, now: Timestamp, info: &FileInfo) -> Result<Opened<'_>, Status> {
        if let Some(objects) = self.objects(info)? {
            return Ok(objects);
        }
        self.move_out(now, info.attrs.id).await
    }
}
