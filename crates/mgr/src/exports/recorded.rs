//! Which directories were exported before, and since when: handles of files from before an export began are not good for what is in it now.

use super::{EXPORTS_MAX, Exports};
use crate::handle::EPOCH_MAX;
use crate::room::Room;
use meta::{Embedded, Namespace};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use types::{FileId, Status};
use xdr::{Malformed, Reader, Writer, Xdr};

/// The key of the record in the registry.
const KEY: &[u8] = b"mgr/exports";
/// How often it is looked whether an export's directory was made meanwhile.
const EVERY: Duration = Duration::from_secs(10);

/// The exports as the metadata store knows them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Recorded {
    /// Rises with each start of an mgr that finds exports which were none at the start before.
    epoch: u32,
    /// By directory: the epoch in which it became an export; 0 for one that was made after it was to be exported, as no handle is older than that.
    added: BTreeMap<FileId, u32>,
}

impl Xdr for Recorded {
    fn encode(&self, out: &mut Writer) {
        out.u32(self.epoch);
        let added: Vec<_> = self.added.iter().map(|(root, epoch)| (root.0, *epoch)).collect();
        out.array(&added, |out, (root, epoch)| {
            out.u64(*root);
            out.u32(*epoch);
        });
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        let epoch = input.u32()?;
        let added = input.array(EXPORTS_MAX, |input| Ok((FileId(input.u64()?), input.u32()?)))?;
        Ok(Recorded { epoch, added: added.into_iter().collect() })
    }
}

impl Recorded {
    /// What holds for these exports after what was on record before.
    pub(super) fn at_start(namespace: &Namespace<Embedded>, roots: &[FileId]) -> Result<Self, Status> {
        let before = namespace.registry(KEY)?;
        let before = before.map(|record| Recorded::from_bytes(&record).map_err(|_| Status::Corrupt)).transpose()?;
        // A store from before this was recorded has handles of epoch 0 alone, and so has a new one.
        Ok(before.map_or_else(|| Recorded::default().with(roots, 0), |before| before.followed_by(roots)))
    }

    /// After a start with these exports: those that are new begin an epoch, those that are gone are forgotten.
    fn followed_by(&self, roots: &[FileId]) -> Self {
        let is_new = |root: &FileId| !self.added.contains_key(root);
        let epoch = if roots.iter().any(is_new) { (self.epoch + 1).min(EPOCH_MAX) } else { self.epoch };
        Recorded { epoch, added: self.added.clone() }.with(roots, epoch)
    }

    /// These exports alone, those that are not known since `epoch`.
    fn with(&self, roots: &[FileId], epoch: u32) -> Self {
        let added = roots.iter().map(|root| (*root, self.added.get(root).copied().unwrap_or(epoch))).collect();
        Recorded { epoch: self.epoch, added }
    }

    /// The epoch of handles that are given out now.
    pub(super) fn epoch(&self) -> u32 {
        self.epoch
    }

    /// The epoch in which a directory became an export.
    pub(super) fn added(&self, root: FileId) -> u32 {
        self.added.get(&root).copied().unwrap_or(0)
    }
}

impl Exports {
    /// Has the exports on record as they are now.
    pub(super) async fn record(&self) -> Result<(), Status> {
        let now = self.recorded.with(&self.roots(), 0).to_bytes();
        if self.namespace.registry(KEY)?.is_some_and(|record| record[..] == now[..]) {
            return Ok(());
        }
        self.namespace.registry_put(net::clock::now().into(), KEY, Some(&now)).await
    }
}

/// Keeps the record true, for ever: a directory that was made after it was to be exported is no new export at the next start.
pub(crate) async fn keep(room: Arc<Room>) {
    loop {
        tokio::time::sleep(EVERY).await;
        if let Err(e) = room.exports.record().await {
            tracing::debug!("the exports are not on record: {e}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutate;

    const A: FileId = FileId(7);
    const B: FileId = FileId(9);

    #[test]
    fn new_exports_begin_an_epoch_and_old_ones_keep_theirs() {
        let first = Recorded::default().with(&[A], 0);
        assert_eq!((first.epoch(), first.added(A)), (0, 0));
        assert_eq!(first.followed_by(&[A]), first);
        let second = first.followed_by(&[B, A]);
        assert_eq!((second.epoch(), second.added(A), second.added(B)), (1, 0, 1));
        // One that was none for a while is a new one.
        let third = second.followed_by(&[A]);
        assert_eq!((third.epoch(), third.added(B)), (1, 0));
        let fourth = third.followed_by(&[A, B]);
        assert_eq!((fourth.epoch(), fourth.added(A), fourth.added(B)), (2, 0, 2));
        let last = Recorded { epoch: EPOCH_MAX, ..first };
        assert_eq!(last.followed_by(&[B]).epoch(), EPOCH_MAX);
    }

    #[test]
    fn bytes_are_these() {
        let recorded = Recorded { epoch: 258, added: BTreeMap::from([(A, 3)]) };
        assert_eq!(recorded.to_bytes(), &[0, 0, 1, 2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 3][..]);
        assert_eq!(Recorded::from_bytes(&recorded.to_bytes()), Ok(recorded));
    }

    #[test]
    fn damaged_records_are_refused_or_read_again_unchanged() {
        let bytes = Recorded { epoch: 4, added: BTreeMap::from([(A, 3), (B, 0)]) }.to_bytes();
        for seed in 0..5000 {
            if let Ok(read) = Recorded::from_bytes(&mutate::mutate(&bytes, seed).into()) {
                assert_eq!(Recorded::from_bytes(&read.to_bytes()), Ok(read));
            }
        }
    }
}
