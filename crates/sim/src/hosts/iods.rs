//! An iod of the simulated cluster: the store and the procedures of the real iod, with a disk in memory.

use super::{Death, IOD, IOD_PORT, name};
use crate::network::{Host, Net};
use crate::random::Rng;
use crate::trace;
use bytes::{Buf, Bytes, BytesMut};
use iod::{Daemon, Memory, Operation, Peer, Store, Volume};
use net::memory::{Pipe, Port};
use net::task::Group;
use std::future::poll_fn;
use std::io::IoSlice;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use types::Fsid;
use types::limits::{FRAGMENTS_MAX, RECORD_MAX};
use wire::native::Key;
use wire::rpc::record::{Mark, Progress};

/// Errors and delays of an iod's disk, which the simulator injects.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DiskFaults {
    /// Percentage of operations on the iod's disk that fail.
    pub failing_percent: u64,
    /// Maximum delay in milliseconds before the iod handles a request, which simulates a slow disk.
    pub slow_ms: u64,
}

/// An iod and its simulated host.
pub struct IodHost {
    host: Host,
    net: Net,
    disk: Memory,
    /// The iod's current disk while the iod uses an older copy of it; `None` while the iod uses the current disk.
    right: Option<Memory>,
    fsid: Fsid,
    key: Key,
    shared: Arc<Shared>,
    process: Option<Group>,
}

#[derive(Debug)]
struct Shared {
    rng: Mutex<Rng>,
    faults: Mutex<DiskFaults>,
    dying: Mutex<bool>,
    /// Whether the simulator let disk operations fail at any time after the start of the iod process.
    erred: Mutex<bool>,
}

impl Shared {
    fn rng<T>(&self, act: impl FnOnce(&mut Rng) -> T) -> T {
        act(&mut self.rng.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn faults(&self) -> DiskFaults {
        *self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl IodHost {
    /// Returns a host whose disk has a formatted, empty store. The iod process does not run yet.
    pub fn new(index: u64, net: Net, rng: Rng, fsid: Fsid, key: Key, disk: Memory) -> Self {
        let host = IOD + index;
        disk.power_cut(&mut |_| 1);
        let shared = Arc::new(Shared {
            rng: Mutex::new(rng),
            faults: Mutex::default(),
            dying: Mutex::default(),
            erred: Mutex::default(),
        });
        IodHost { host, net, disk, right: None, fsid, key, shared, process: None }
    }

    /// Returns the host number of the iod.
    pub fn host(&self) -> Host {
        self.host
    }

    /// Returns the disk that the iod uses now: the current disk or an older copy.
    pub fn disk(&self) -> &Memory {
        &self.disk
    }

    /// Replaces the disk by an older copy. The iod process must not be running.
    pub fn put_older(&mut self, older: Memory) {
        self.right = Some(std::mem::replace(&mut self.disk, older));
    }

    /// Restores the iod's current disk. Returns whether the iod used an older copy. The iod process must not be
    /// running.
    pub fn put_back(&mut self) -> bool {
        let right = self.right.take();
        let was_older = right.is_some();
        self.disk = right.unwrap_or_else(|| self.disk.clone());
        was_older
    }

    /// Returns whether the iod uses an older copy of its disk.
    pub fn is_older(&self) -> bool {
        self.right.is_some()
    }

    /// Returns whether the iod process runs.
    pub fn is_up(&self) -> bool {
        self.process.is_some()
    }

    /// Returns whether the disk has failed, or will fail after a planned number of changes.
    pub fn is_dying(&self) -> bool {
        *self.shared.dying.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets `changes` more writes and other changes of the disk succeed. After these changes, every disk operation
    /// fails until a power loss.
    pub fn die_after(&self, changes: u64) {
        *self.shared.dying.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.disk.die_after(changes);
    }

    /// Sets which errors and delays the disk has from now on. Returns whether the disk had a setting with errors at
    /// any time since the start of the iod process.
    pub fn set_faults(&self, faults: DiskFaults) -> bool {
        let before = {
            let mut now = self.shared.faults.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *now, faults)
        };
        let had_errors = {
            let mut erred = self.shared.erred.lock().unwrap_or_else(PoisonError::into_inner);
            *erred |= before.failing_percent > 0;
            *erred
        };
        if faults.failing_percent == 0 {
            self.disk.heal();
            return had_errors;
        }
        let shared = self.shared.clone();
        self.disk.inject(move |operation, _| {
            let fails = shared.rng(|rng| rng.percent(faults.failing_percent));
            let io = rustix::io::Errno::IO.raw_os_error();
            (fails && operation != Operation::Open).then(|| std::io::Error::from_raw_os_error(io))
        });
        had_errors
    }

    /// Starts the iod process, unless it is running.
    pub fn start(&mut self) -> Result<(), String> {
        if self.is_up() {
            return Ok(());
        }
        *self.shared.erred.lock().unwrap_or_else(PoisonError::into_inner) = self.shared.faults().failing_percent > 0;
        let group = Group::new(self.host);
        let store = Store::open_on(Arc::new(self.disk.clone())).map_err(|e| e.to_string())?;
        if store.fsid() != self.fsid {
            return Err("the store is of another file system".into());
        }
        let daemon = Arc::new(Daemon::new(Volume::new(store, &self.key), Vec::new()));
        let port = self.net.listen(self.host, IOD_PORT).map_err(|e| e.to_string())?;
        trace::say(format!("{} starts", name(self.host)));
        group.spawn(accept(port, daemon, self.shared.clone(), group.clone()));
        self.process = Some(group);
        Ok(())
    }

    /// Ends the iod process, if it is running. A power loss also affects the disk.
    pub fn die(&mut self, death: Death) {
        if let Some(group) = self.process.take() {
            trace::say(format!("{} dies: {death:?}", name(self.host)));
            match death {
                Death::Killed => self.net.process_died(self.host),
                Death::PowerCut => self.net.power_off(self.host),
            }
            group.kill();
        }
        if death == Death::PowerCut {
            *self.shared.dying.lock().unwrap_or_else(PoisonError::into_inner) = false;
            self.shared.rng(|rng| self.disk.power_cut(&mut |below| rng.below(below)));
        }
    }
}

async fn accept(port: Arc<dyn Port>, daemon: Arc<Daemon>, shared: Arc<Shared>, group: Group) {
    while let Ok(pipe) = poll_fn(|cx| port.poll_accept(cx)).await {
        group.spawn(serve(pipe, Peer::new(daemon.clone()), shared.clone()));
    }
}

/// Serves the requests of one connection in order, as a connection thread of a real iod does.
async fn serve(pipe: Arc<dyn Pipe>, mut peer: Peer, shared: Arc<Shared>) {
    let mut inbox = BytesMut::new();
    while let Some(record) = receive(&*pipe, &mut inbox).await {
        let slow = shared.faults().slow_ms;
        let pause = shared.rng(|rng| rng.between(0, slow));
        if pause > 0 {
            tokio::time::sleep(Duration::from_millis(pause)).await;
        }
        let reply = match peer.record(record) {
            Ok(reply) => reply,
            Err(error) => {
                tracing::debug!("an iod disconnects: {error}");
                return;
            }
        };
        if send(&*pipe, reply).await.is_none() {
            return;
        }
    }
}

async fn receive(pipe: &dyn Pipe, inbox: &mut BytesMut) -> Option<Bytes> {
    let mut progress = Progress::new(RECORD_MAX, FRAGMENTS_MAX);
    let mut record = BytesMut::new();
    loop {
        fill(pipe, inbox, 4).await?;
        let mark = Mark::from_bytes([inbox[0], inbox[1], inbox[2], inbox[3]]);
        progress.begin(mark).ok()?;
        inbox.advance(4);
        fill(pipe, inbox, mark.len).await?;
        record.unsplit(inbox.split_to(mark.len));
        if mark.last {
            return Some(record.freeze());
        }
    }
}

async fn fill(pipe: &dyn Pipe, inbox: &mut BytesMut, len: usize) -> Option<()> {
    while inbox.len() < len {
        let bytes = poll_fn(|cx| pipe.poll_read(cx, RECORD_MAX)).await.ok()?;
        if bytes.is_empty() {
            return None;
        }
        inbox.extend_from_slice(&bytes);
    }
    Some(())
}

async fn send(pipe: &dyn Pipe, record: Bytes) -> Option<()> {
    let mark = (record.len() as u32 | 1 << 31).to_be_bytes();
    let mut sent = 0;
    while sent < record.len() + 4 {
        let (head, body) = (&mark[sent.min(4)..], &record[sent.saturating_sub(4)..]);
        match pipe.try_write_vectored(&[IoSlice::new(head), IoSlice::new(body)]) {
            Ok(n) => sent += n,
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {
                poll_fn(|cx| pipe.poll_writable(cx)).await.ok()?;
            }
            Err(_) => return None,
        }
    }
    Some(())
}
