//! A disk in memory under the embedded store, which can be held, broken, and cut from its power.

use redb::StorageBackend;
use std::io;
use std::sync::{Arc, Condvar, Mutex};

/// A disk; clones are the same disk.
#[derive(Clone, Debug, Default)]
pub struct Disk(Arc<(Mutex<Inner>, Condvar)>);

#[derive(Debug, Default)]
struct Inner {
    now: Vec<u8>,
    synced: Vec<u8>,
    unsynced: Vec<Change>,
    syncs_held: bool,
    waiting: usize,
    /// Writes and syncs still to succeed.
    budget: Option<usize>,
    operations: usize,
}

#[derive(Clone, Debug)]
enum Change {
    Len(usize),
    Write(usize, Vec<u8>),
}

impl Change {
    fn apply(&self, to: &mut Vec<u8>) {
        match self {
            Change::Len(len) => set_len(to, *len),
            Change::Write(offset, data) => {
                let end = offset + data.len();
                if to.len() < end {
                    set_len(to, end);
                }
                to[*offset..end].copy_from_slice(data);
            }
        }
    }
}

/// Cuts, or adds zeros; `resize` would write each of them by itself in a program that is not optimised.
fn set_len(data: &mut Vec<u8>, len: usize) {
    data.truncate(len);
    data.extend_from_slice(&vec![0; len - data.len()]);
}

impl Inner {
    fn spend(&mut self) -> io::Result<()> {
        self.operations += 1;
        match &mut self.budget {
            Some(0) => Err(io::Error::other("the disk is broken")),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn change(&mut self, change: Change) -> io::Result<()> {
        self.spend()?;
        change.apply(&mut self.now);
        self.unsynced.push(change);
        Ok(())
    }
}

#[allow(dead_code)] // each test binary uses its own part
impl Disk {
    fn inner(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.0.0.lock().expect("disk")
    }

    /// Lets every sync wait from now on.
    pub fn hold_syncs(&self) {
        self.inner().syncs_held = true;
    }

    /// Waits until a sync waits.
    pub fn wait_for_sync(&self) {
        let mut inner = self.inner();
        while inner.waiting == 0 {
            inner = self.0.1.wait(inner).expect("disk");
        }
    }

    /// Lets syncs go on.
    pub fn release_syncs(&self) {
        self.inner().syncs_held = false;
        self.0.1.notify_all();
    }

    /// Fails every write and sync after so many more.
    pub fn break_after(&self, operations: usize) {
        self.inner().budget = Some(operations);
    }

    /// Writes and syncs so far.
    pub fn operations(&self) -> usize {
        self.inner().operations
    }

    /// The disk after a power cut: what was synced, and of the writes since then those for which `kept` says so,
    /// each up to as many bytes as it says.
    pub fn after_power_cut(&self, mut kept: impl FnMut(usize) -> usize) -> Disk {
        let inner = self.inner();
        let mut data = inner.synced.clone();
        for change in &inner.unsynced {
            match change {
                Change::Len(len) if kept(1) == 1 => set_len(&mut data, *len),
                Change::Len(_) => {}
                Change::Write(offset, bytes) => {
                    let part = bytes[..kept(bytes.len()).min(bytes.len())].to_vec();
                    if !part.is_empty() {
                        Change::Write(*offset, part).apply(&mut data);
                    }
                }
            }
        }
        let inner = Inner { now: data.clone(), synced: data, ..Inner::default() };
        Disk(Arc::new((Mutex::new(inner), Condvar::new())))
    }
}

impl StorageBackend for Disk {
    fn len(&self) -> io::Result<u64> {
        Ok(self.inner().now.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let inner = self.inner();
        let from = offset as usize;
        let data = inner.now.get(from..from + out.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        out.copy_from_slice(data);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.inner().change(Change::Len(len as usize))
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut inner = self.inner();
        inner.waiting += 1;
        self.0.1.notify_all();
        while inner.syncs_held {
            inner = self.0.1.wait(inner).expect("disk");
        }
        inner.waiting -= 1;
        inner.spend()?;
        let Inner { synced, unsynced, .. } = &mut *inner;
        unsynced.drain(..).for_each(|change| change.apply(synced));
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.inner().change(Change::Write(offset as usize, data.to_vec()))
    }
}
