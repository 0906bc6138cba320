//! The room: namespace, iods and layouts brought together behind the NFS server's door.

mod damaged;
mod data;
pub(crate) mod gathering;
mod inline;
mod layouts;
mod lost;
mod policy;
mod queue;
mod sizes;
mod space;

use crate::clients::Clients;
use crate::counters::Counting;
use crate::devices::Devices;
use crate::exports::Exports;
use crate::gathered::Gathered;
use crate::grants::Grants;
use crate::iods::Iods;
use crate::locks::FileLocks;
use crate::notes::Notes;
use crate::proxy::Objects;
use crate::queue::Queue;
use crate::rights::Rights;
use crate::scrub::Scrubs;
use crate::space::Space;
use damaged::Damaged;
pub(crate) use damaged::Suspects;
use layout::kinds::native::KIND;
use layout::{Later, Origin, Policy, Settings};
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

/// What the operations of the file system work with.
#[derive(Debug)]
pub(crate) struct Room {
    pub(crate) namespace: Arc<Namespace<Embedded>>,
    /// Another number once the machine has been without power: what was answered for and not settled before may be lost.
    pub(crate) boot: u64,
    /// Objects without files are kept below this number: they may be of files that an older copy of the store does not know.
    pub(crate) kept_below: FileId,
    pub(crate) iods: Arc<Iods>,
    pub(crate) clients: Clients,
    pub(crate) grants: Grants,
    pub(crate) notes: Notes,
    pub(crate) scrubs: Scrubs,
    pub(crate) locks: FileLocks,
    /// Held while the bytes of a small file move to its objects.
    pub(crate) moving: FileLocks,
    /// Files up to this many bytes are kept with their metadata.
    pub(crate) inline_max: u64,
    /// How much room files with holes take.
    pub(crate) space: Space,
    /// Small writes that wait to be joined.
    pub(crate) gathered: Gathered,
    pub(crate) counters: Counting,
    /// How files are laid out where neither a directory nor an export says otherwise.
    pub(crate) policy: Policy,
    pub(crate) lease_secs: u32,
    pub(crate) capability_secs: u32,
    pub(crate) data_handle_secs: u32,
    /// Who may still have the right to use objects past the mgr.
    pub(crate) rights: Rights,
    /// How long requests wait before they are worked on.
    pub(crate) queue: Arc<Mutex<Queue>>,
    /// When this mgr began to work.
    pub(crate) begun: Instant,
    /// What clients may mount, on what terms.
    pub(crate) exports: Exports,
    pub(crate) devices: Devices,
    pub(crate) native: NativeClients,
    /// Files that were met with lost or damaged bytes.
    pub(crate) damaged: Damaged,
    /// Told when a file's objects are to be deleted.
    pub(crate) doomed: Notify,
    /// Whether files may be left that have neither a name nor an open: from before the start, or because freeing one failed.
    pub(crate) orphans_left: AtomicBool,
}

pub(crate) fn now() -> Timestamp {
    net::clock::now().into()
}

impl Room {
    /// Where the bytes of a new file in `dir` shall live; while no iod is up, how that is to be decided at first use.
    pub(crate) fn layout_in(&self, place: Place, dir: FileId) -> Result<Layout, Status> {
        let xattrs = self.namespace.effective_xattrs(dir, layout::policy::PREFIX.as_bytes())?;
        let xattrs = xattrs.iter().map(|(name, value)| (&name[..], &value[..]));
        let own = Settings::of_xattrs(Origin::Directory, xattrs, |e| {
            tracing::warn!(dir = dir.0, "a part of the policy of a directory cannot be used: {e}");
        });
        let policy = self.exports.rule(place).policy.with(&own);
        match self.choose(&policy) {
            Ok(layout) if self.inline_max > 0 => Ok(layout.inline()),
            Ok(layout) => Ok(layout),
            Err(Status::Delay) => Ok(Layout { kind: Layout::LATER, body: Later::from(&policy).to_bytes() }),
            Err(e) => Err(e),
        }
    }

    /// The namespace as whoever asks wants it changed: waiting for the disk, or not.
    pub(crate) fn names(&self, ctx: &Ctx) -> Namespace<Embedded> {
        if ctx.soon { self.namespace.soon() } else { self.namespace.waiting() }
    }

    fn choose(&self, policy: &Policy) -> Result<Layout, Status> {
        let record = self.iods.choose(policy)?;
        Ok(Layout { kind: KIND, body: record.to_bytes() })
    }

    /// A file whose bytes are asked for: `IsDir` or `Inval` for anything that has none.
    pub(crate) fn regular(&self, file: FileId) -> Result<FileInfo, Status> {
        let info = self.namespace.info(file)?;
        match info.attrs.kind {
            FileKind::Regular => Ok(info),
            FileKind::Directory => Err(Status::IsDir),
            FileKind::Symlink => Err(Status::Symlink),
            _ => Err(Status::WrongType),
        }
    }

    /// The objects of a file, `None` while what was written to it is kept with its metadata.
    pub(crate) fn objects(&self, info: &FileInfo) -> Result<Option<Objects<'_>>, Status> {
        let objects = |layout| {
            Objects::new(&self.iods, info.attrs.id, info.generation, layout)
                .map(|objects| objects.knowing(info.attrs.size, info.whole, info.written))
        };
        info.layout.as_ref().filter(|layout| layout.is_final()).map(objects).transpose()
    }

    /// The objects that a file has or is to have, as far as that is decided.
    pub(crate) fn objects_to_be(&self, info: &FileInfo) -> Result<Option<Objects<'_>>, Status> {
        let objects = |layout| Objects::new(&self.iods, info.attrs.id, info.generation, &layout);
        self.decided(info)?.map(objects).transpose()
    }

    /// Whether the bytes of a file are in its objects, and not with its metadata.
    pub(crate) fn is_in_objects(&self, info: &FileInfo) -> bool {
        info.layout.as_ref().is_some_and(Layout::is_final)
    }

    /// The objects of a file that are about to be used: what is kept with its metadata is there then.
    pub(crate) async fn objects_now(&self, now: Timestamp, info: &FileInfo) -> Result<Objects<'_>, Status> {
        if let Some(objects) = self.objects(info)? {
            return Ok(objects);
        }
        self.move_out(now, info.attrs.id).await
    }
}
