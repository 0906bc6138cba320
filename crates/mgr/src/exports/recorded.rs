//! The durable record of exports: which directories were exported at earlier starts of the mgr, and the export epoch
//! from which filehandles of their files are valid. The export epoch is a number that grows when the exports change.

use super::{EXPORTS_MAX, Exports};
use crate::handle::EPOCH_MAX;
use bytes::Bytes;
use meta::{Embedded, Namespace};
use std::collections::BTreeMap;
use types::{FileId, Status};
use xdr::{Malformed, Reader, Writer, Xdr};

/// Key of the record of exports in the registry of the metadata store.
const KEY: &[u8] = b"mgr/exports";

/// An export whose directory exists: the names on its path from the root directory, and the directory itself.
pub(super) type Rooted<'a> = (&'a [Bytes], FileId);

/// The record of exports, as it is in the metadata store.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Recorded {
    /// Epoch of the newest export. Each start of the mgr that finds new exports increments this number.
    epoch: u32,
    /// For each exported directory: the lowest epoch of valid filehandles. The mgr refuses filehandles of regular files
    /// with a lower epoch, because the file may belong to another export now. The mgr raises the epoch of an export
    /// when the export is new, and when a new export is configured below it. The epoch never falls.
    good_from: BTreeMap<FileId, u32>,
}

impl Xdr for Recorded {
    fn encode(&self, out: &mut Writer) {
        out.u32(self.epoch);
        let all: Vec<_> = self.good_from.iter().map(|(root, epoch)| (root.0, *epoch)).collect();
        out.array(&all, |out, (root, epoch)| {
            out.u64(*root);
            out.u32(*epoch);
        });
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        let epoch = input.u32()?;
        let all = input.array(EXPORTS_MAX, |input| Ok((FileId(input.u64()?), input.u32()?)))?;
        Ok(Recorded { epoch, good_from: all.into_iter().collect() })
    }
}

impl Recorded {
    /// Returns the record of exports for these exports, computed from the record that the previous start of the mgr
    /// stored.
    ///
    /// A store without a record is new, or an older version of Weir has served it. Such a version sent clients
    /// filehandles of files in exports that the clients did not see. So if one export contains another, the mgr refuses
    /// filehandles of files in the outer export that are from before this start.
    pub(super) fn at_start(
        namespace: &Namespace<Embedded>,
        exports: &[Rooted<'_>],
        is_new: bool,
    ) -> Result<Self, Status> {
        let before = namespace.registry(KEY)?;
        let before = before.map(|record| Recorded::from_bytes(&record).map_err(|_| Status::Corrupt)).transpose()?;
        Ok(match before {
            Some(before) => before.followed_by(exports),
            None if is_new => Recorded::default().with(exports),
            None => {
                let outer = exports.iter().filter(|outer| exports.iter().any(|inner| is_below(inner, outer)));
                let good_from: BTreeMap<_, _> = outer.map(|(_, root)| (*root, 1)).collect();
                Recorded { epoch: u32::from(!good_from.is_empty()), good_from }.with(exports)
            }
        })
    }

    /// Returns the record of exports for a start of the mgr with the exports `exports`, computed from `self`, the
    /// record of the previous start. New exports, and exports that contain a new export, get a new epoch. The returned
    /// record does not contain removed exports.
    fn followed_by(&self, exports: &[Rooted<'_>]) -> Self {
        let is_new = |(_, root): &Rooted<'_>| !self.good_from.contains_key(root);
        let new: Vec<_> = exports.iter().filter(|export| is_new(export)).collect();
        if new.is_empty() {
            return self.with(exports);
        }
        let epoch = (self.epoch + 1).min(EPOCH_MAX);
        let rises = |export: &Rooted<'_>| is_new(export) || new.iter().any(|new| is_below(new, export));
        let mut next = self.with(exports);
        next.epoch = epoch;
        next.good_from.extend(exports.iter().filter(|export| rises(export)).map(|(_, root)| (*root, epoch)));
        next
    }

    /// Returns the record restricted to the exports `exports`. An export without a recorded epoch gets epoch 0. Its
    /// directory was created after the export was configured, so no older filehandles of its files exist.
    fn with(&self, exports: &[Rooted<'_>]) -> Self {
        let good_from = exports.iter().map(|(_, root)| (*root, self.good_from(*root))).collect();
        Recorded { epoch: self.epoch, good_from }
    }

    /// Returns the lowest export epoch that a valid filehandle of the exported directory `root` may contain. The mgr
    /// refuses filehandles with a lower epoch.
    pub(super) fn good_from(&self, root: FileId) -> u32 {
        self.good_from.get(&root).copied().unwrap_or(0)
    }
}

/// Returns whether the directory of the export `inner` lies below the directory of the export `outer`.
fn is_below((inner, _): &Rooted<'_>, (outer, _): &Rooted<'_>) -> bool {
    inner.len() > outer.len() && inner.starts_with(outer)
}

impl Exports {
    /// Stores the current exports in the metadata store, if they differ from the stored record.
    pub(crate) async fn record(&self) -> Result<(), Status> {
        let now = self.recorded.with(&self.rooted(&self.read())).to_bytes();
        if self.namespace.registry(KEY)?.is_some_and(|record| record[..] == now[..]) {
            return Ok(());
        }
        self.namespace.registry_put(net::clock::now().into(), KEY, Some(&now)).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutate;

    const A: FileId = FileId(7);
    const B: FileId = FileId(9);

    fn names(path: &str) -> Vec<Bytes> {
        path.split('/').filter(|name| !name.is_empty()).map(|name| Bytes::copy_from_slice(name.as_bytes())).collect()
    }

    #[test]
    fn handles_change_inside_and_around_a_new_export() {
        let (top, a, b) = (names("/"), names("/a"), names("/b"));
        let (top, a, b): (Rooted<'_>, _, _) = ((&top, FileId::ROOT), (&a[..], A), (&b[..], B));
        let of = |recorded: &Recorded| [FileId::ROOT, A, B].map(|root| recorded.good_from(root));
        let first = Recorded::default().with(&[a]);
        assert_eq!((first.epoch, of(&first)), (0, [0, 0, 0]));
        assert_eq!(first.followed_by(&[a]), first);
        // The new export is not below the export `a`, so the epoch of `a` stays the same.
        let second = first.followed_by(&[b, a]);
        assert_eq!((second.epoch, of(&second)), (1, [0, 0, 1]));
        let third = second.followed_by(&[top, a, b]);
        assert_eq!((third.epoch, of(&third)), (2, [2, 0, 1]));
        // Removing an export changes no epoch of the other exports. An export that is configured again counts as new.
        // Its epoch rises, and so does the epoch of the export that contains it.
        let fourth = third.followed_by(&[top, a]);
        assert_eq!((fourth.epoch, of(&fourth)), (2, [2, 0, 0]));
        let fifth = fourth.followed_by(&[top, a, b]);
        assert_eq!((fifth.epoch, of(&fifth)), (3, [3, 0, 3]));
        let last = Recorded { epoch: EPOCH_MAX, ..first };
        assert_eq!(last.followed_by(&[b]).epoch, EPOCH_MAX);
    }

    #[test]
    fn a_record_has_its_golden_bytes() {
        let recorded = Recorded { epoch: 258, good_from: BTreeMap::from([(A, 3)]) };
        assert_eq!(recorded.to_bytes(), &[0, 0, 1, 2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 3][..]);
        assert_eq!(Recorded::from_bytes(&recorded.to_bytes()), Ok(recorded));
    }

    #[test]
    fn a_damaged_record_is_refused_or_encodes_to_the_same_bytes() {
        let bytes = Recorded { epoch: 4, good_from: BTreeMap::from([(A, 3), (B, 0)]) }.to_bytes();
        for seed in 0..5000 {
            if let Ok(read) = Recorded::from_bytes(&mutate::mutate(&bytes, seed).into()) {
                assert_eq!(Recorded::from_bytes(&read.to_bytes()), Ok(read));
            }
        }
    }
}
