//! What the client knows about a log file as long as it has any layout of the file: its data log, and the verifiers of
//! the iods.
//!
//! # Verifiers
//! The bytes of one write are on several iods, and their registration on another one. Each of these iods loses what is
//! not durable when it restarts, and then has another verifier. So the driver does not return the verifier of one iod,
//! but a number: the epoch of the file. [`LogFile::saw`] starts another epoch when the reply of an iod has another
//! verifier than the last reply of this iod. A write returns the epoch of its data log, and a commit returns the epoch
//! at its end. If both are equal, the write is durable:
//! * The write got a reply from each iod that has bytes or the registration of the write. Before that reply, the client
//!   may not have known any verifier of the iod; from then on it knows one.
//! * The commit got a reply from each of these iods after that, by the COMMIT of a data log or by the REGISTER of the
//!   lane. (If another commit sent the COMMIT, it covers the write as well.) If the iod restarted between the two
//!   replies, their verifiers differ. Then at least one reply in between, in the order in which the client processed
//!   them, differed from the reply before it, and started an epoch after that of the write.
//! * If no iod restarted, the COMMITs made the bytes durable before the REGISTER made the runs durable.
//!
//! A commit does not make runs durable whose bytes an iod may have lost: a data log belongs to one epoch
//! ([`LogFile::own`]), and a commit sends no REGISTER if the epoch ended before the COMMITs. The runs of such a log
//! stay pending until later runs replace them, or until their shard stops. Until then a reader that misses their bytes
//! reads the older, durable ones. The client sends all writes of the ended epoch again, to another data log.
//!
//! A client can lose all layouts of a file before it commits its writes, for instance when the mgr fences the file. It
//! must not send these writes again under the next layout, because another client may have overwritten them since. So
//! the table keeps a [`LogFile`] that has such writes. The numbers of epochs are never used again, not even by another
//! [`LogFile`] for the same file: if the table had no room for a file, the next commit has another verifier than the
//! earlier writes, and the client sends these again.

use super::own_log::OwnLog;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use tokio::sync::Mutex as AsyncMutex;
use types::{FileId, IodId, ObjectId, Verifier};

/// The least number of files in the table before the driver removes the files without a layout from it.
const TABLE_LEAST: usize = 64;

/// The largest number of files that the table keeps because of their uncommitted writes.
const KEPT_MAX: usize = 1 << 16;

/// The log files of a mount of which the client has a layout, or writes that it has not committed.
#[derive(Default)]
pub(in crate::drivers::native) struct LogFiles {
    table: Arc<Mutex<Table>>,
    /// The number of the last epoch of any file.
    epochs: Arc<AtomicU64>,
}

#[derive(Default)]
struct Table {
    files: HashMap<FileId, Weak<LogFile>>,
    /// The files with writes that the client has not committed.
    kept: HashMap<FileId, Arc<LogFile>>,
    /// Number of files in the table after the driver last removed the files without a layout.
    live: usize,
}

impl LogFiles {
    /// Returns the file with this base, which the layouts of the file share.
    pub(super) fn file(&self, base: ObjectId, stripe_unit: u64, iods: &[IodId]) -> Arc<LogFile> {
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        let known = table.files.get(&base.file).and_then(Weak::upgrade);
        // If the mgr has moved the file, its index and its logs are new.
        let same = |file: &LogFile| file.base == base && file.stripe_unit == stripe_unit && file.iods == iods;
        if let Some(file) = known.filter(|file| same(file)) {
            return file;
        }
        if table.files.len() >= TABLE_LEAST.max(2 * table.live) {
            table.files.retain(|_, file| file.strong_count() > 0);
            table.live = table.files.len();
        }
        let file = Arc::new(LogFile {
            base,
            stripe_unit,
            iods: iods.to_vec(),
            seen: Mutex::new(Seen { verifiers: vec![None; iods.len()], epoch: next(&self.epochs) }),
            epochs: self.epochs.clone(),
            table: Arc::downgrade(&self.table),
            own: AsyncMutex::default(),
        });
        table.files.insert(base.file, Arc::downgrade(&file));
        file
    }
}

fn next(epochs: &AtomicU64) -> u64 {
    epochs.fetch_add(1, Relaxed) + 1
}

/// Returns the verifier that stands for an epoch.
pub(super) fn verifier(epoch: u64) -> Verifier {
    Verifier(epoch.to_be_bytes())
}

/// A log file, as long as the client has any layout of it, or uncommitted writes.
pub(super) struct LogFile {
    base: ObjectId,
    stripe_unit: u64,
    iods: Vec<IodId>,
    seen: Mutex<Seen>,
    epochs: Arc<AtomicU64>,
    table: Weak<Mutex<Table>>,
    /// The data log to which the client appends, once it has one. It belongs to the epoch in which the client opened
    /// it, and the client replaces it in the next epoch. The lock is held while the client opens a log.
    pub(super) own: AsyncMutex<Option<Arc<OwnLog>>>,
}

struct Seen {
    /// The verifier in the last reply of each iod.
    verifiers: Vec<Option<Verifier>>,
    epoch: u64,
}

impl LogFile {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the file in the table until [`LogFile::committed`], because the client has written to it.
    pub(super) fn written(self: &Arc<Self>) {
        self.change_table(|table| {
            if table.kept.len() < KEPT_MAX || table.kept.contains_key(&self.base.file) {
                table.kept.insert(self.base.file, self.clone());
            }
        });
    }

    /// Removes the file from the files that the table keeps, because all its writes are committed or will be sent
    /// again.
    pub(super) fn committed(self: &Arc<Self>) {
        self.change_table(|table| {
            if table.kept.get(&self.base.file).is_some_and(|kept| Arc::ptr_eq(kept, self)) {
                table.kept.remove(&self.base.file);
            }
        });
    }

    fn change_table(&self, change: impl FnOnce(&mut Table)) {
        if let Some(table) = self.table.upgrade() {
            change(&mut table.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// Returns the present epoch.
    pub(super) fn epoch(&self) -> u64 {
        self.seen().epoch
    }

    /// Records the verifier in a reply of an iod, and starts another epoch if the last reply of the iod had another
    /// verifier.
    pub(super) fn saw(&self, index: usize, verifier: Verifier) {
        let mut seen = self.seen();
        let Some(last) = seen.verifiers.get_mut(index) else { return };
        if last.replace(verifier).is_some_and(|last| last != verifier) {
            seen.epoch = next(&self.epochs);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IODS: [IodId; 2] = [IodId([1; 16]), IodId([2; 16])];

    #[test]
    fn an_epoch_ends_when_the_verifier_of_an_iod_changes() {
        let files = LogFiles::default();
        let file = files.file(ObjectId::stream_0(FileId(1)), 64, &IODS);
        let first = file.epoch();
        file.saw(0, Verifier([1; 8]));
        file.saw(1, Verifier([2; 8]));
        file.saw(0, Verifier([1; 8]));
        assert_eq!(file.epoch(), first, "the first verifiers of the iods");
        file.saw(0, Verifier([3; 8]));
        let second = file.epoch();
        assert_ne!(second, first);
        // A reply of the earlier process of the iod, which the client processes late.
        file.saw(0, Verifier([1; 8]));
        assert_ne!(file.epoch(), second);
        assert_ne!(file.epoch(), first, "an epoch never comes back");
    }

    #[test]
    fn layouts_of_a_file_share_its_state_and_other_files_do_not() {
        let files = LogFiles::default();
        let base = ObjectId::stream_0(FileId(1));
        let file = files.file(base, 64, &IODS);
        assert!(Arc::ptr_eq(&file, &files.file(base, 64, &IODS)));
        let moved = files.file(ObjectId::new(FileId(1), 1), 64, &IODS);
        assert!(!Arc::ptr_eq(&file, &moved) && moved.epoch() != file.epoch());
        let epoch = moved.epoch();
        drop((file, moved));
        assert_ne!(files.file(base, 64, &IODS).epoch(), epoch, "the client has forgotten the file");
    }

    #[test]
    fn files_without_a_layout_leave_the_table() {
        let files = LogFiles::default();
        for number in 0..10 * TABLE_LEAST as u64 {
            files.file(ObjectId::stream_0(FileId(number)), 64, &IODS);
        }
        assert!(files.table.lock().unwrap().files.len() <= TABLE_LEAST);
    }
}
