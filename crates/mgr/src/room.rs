//! The room: namespace, iods and layouts brought together behind the NFS server's door.

mod data;
mod layouts;
mod sizes;

use crate::clients::Clients;
use crate::counters::Counting;
use crate::grants::Grants;
use crate::iods::Iods;
use crate::locks::FileLocks;
use crate::proxy::Objects;
use layout::Policy;
use layout::kinds::native::KIND;
use meta::{Embedded, FileInfo, Layout, Namespace};
use std::sync::Arc;
use tokio::sync::Notify;
use types::{FileId, FileKind, Status, Timestamp};
use xdr::Xdr;

/// What the operations of the file system work with.
#[derive(Debug)]
pub(crate) struct Room {
    pub(crate) namespace: Arc<Namespace<Embedded>>,
    pub(crate) iods: Arc<Iods>,
    pub(crate) clients: Clients,
    pub(crate) grants: Grants,
    pub(crate) locks: FileLocks,
    pub(crate) counters: Counting,
    /// How files are laid out where no directory says otherwise.
    pub(crate) policy: Policy,
    pub(crate) lease_secs: u32,
    pub(crate) capability_secs: u32,
    /// Told when a file's objects are to be deleted.
    pub(crate) doomed: Notify,
}

pub(crate) fn now() -> Timestamp {
    std::time::SystemTime::now().into()
}

impl Room {
    /// Where the bytes of a new file in `dir` shall live; `None` while no iod is up, then it is decided at first use.
    pub(crate) fn layout_in(&self, dir: FileId) -> Result<Option<Layout>, Status> {
        let xattrs = self.namespace.effective_xattrs(dir, layout::policy::PREFIX.as_bytes())?;
        let policy = self.policy.with_xattrs(xattrs.iter().map(|(name, value)| (&name[..], &value[..])));
        let policy = policy.unwrap_or_else(|e| {
            tracing::warn!(dir = dir.0, "the policy of a directory cannot be used: {e}");
            self.policy
        });
        match self.choose(&policy) {
            Ok(layout) => Ok(Some(layout)),
            Err(Status::Delay) => Ok(None),
            Err(e) => Err(e),
        }
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

    /// The objects of a file, `None` while nothing was ever written to it.
    pub(crate) fn objects(&self, info: &FileInfo) -> Result<Option<Objects<'_>>, Status> {
        let objects = |layout| Objects::new(&self.iods, info.attrs.id, info.generation, layout);
        info.layout.as_ref().map(objects).transpose()
    }

    /// The objects of a file that is about to be used, chosen now if they were not before.
    pub(crate) async fn objects_now(&self, now: Timestamp, info: &FileInfo) -> Result<Objects<'_>, Status> {
        if let Some(objects) = self.objects(info)? {
            return Ok(objects);
        }
        let layout = self.choose(&self.policy)?;
        let info = self.namespace.set_layout(now, info.attrs.id, &layout).await?;
        self.objects(&info)?.ok_or(Status::ServerFault)
    }
}
