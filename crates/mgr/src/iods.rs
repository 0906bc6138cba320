//! The iods of the file system: their identities, their connections, and the choice of iods for a new file.
//!
//! Every iod that ever connected has a permanent number, stored in the registry of the metadata store. Layout records
//! name iods by this number. For each configured address, one task connects to the iod at this address, and reconnects
//! after a failure.

mod claiming;
mod claims;
mod epochs;
mod link;
pub(crate) mod objects;
mod pending_fences;
mod recover;
mod register;
mod sent_marks;
mod supervisor;
mod verifiers;

pub use claims::Refusal;
pub(crate) use link::{Link, RequestError};
pub(crate) use register::{Registered, record};
pub(crate) use verifiers::Verifiers;

use crate::cluster_file::ClusterFile;
use crate::devices::DataServer;
use crate::kinds::Kinds;
use claims::Claims;
use meta::{Embedded, Namespace};
use net::Address;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;
use types::{FileId, Generation, IodId, Status, StoreId};
use wire::native::StatsReply;

/// Free space in bytes below which an iod gets no new files, as long as another connected iod has at least this much
/// free space.
const LOW_SPACE: u64 = 64 << 20;

/// Smallest sequence number of a registration in the index of a log file that is not durable. Durable registrations of
/// the mgr have smaller numbers.
const FIRST_REGISTRATION_MIN: u64 = 2;

/// Longest time for which a start of the mgr waits for its iods. A slow iod must not delay clients that use other iods.
const START: Duration = Duration::from_secs(5);

/// All iods of the file system: the registered ones and the configured addresses.
#[derive(Debug)]
pub(crate) struct Iods {
    namespace: Arc<Namespace<Embedded>>,
    kinds: Arc<Kinds>,
    cluster: ClusterFile,
    counters: net::Counters,
    state: Mutex<State>,
    /// How long an iod may be unreachable before it counts as lost (`iod_wait_secs`).
    patience: Duration,
    slots: Vec<Slot>,
    /// Number of files that got a layout record. The mgr uses this counter to place the first objects of consecutive
    /// files on different iods.
    first: AtomicU64,
    /// Incarnation number of the next link to an iod. The high 32 bits are the epoch of this start of the mgr, and the
    /// low 32 bits are a counter.
    incarnation: AtomicU64,
    /// Sequence number of the next registration in the index of a log file.
    registration: AtomicU64,
    pub(crate) verifiers: Verifiers,
    /// Counter that the mgr increments whenever an iod connects.
    pub(crate) came_up: watch::Sender<u64>,
    claims: Claims,
    /// The epoch of this start of the mgr: the number of starts on this metadata store.
    epoch: u32,
    /// Lowest epoch whose capabilities are still valid. See [`Iods::end_earlier_rights`].
    least_epoch: AtomicU32,
    /// Number of configured addresses that the mgr has tried since its start.
    tried: watch::Sender<usize>,
    refused: watch::Sender<Option<Refused>>,
}

/// An iod that must not be used with this metadata store, and the reason.
#[derive(Clone, Debug)]
pub(crate) struct Refused {
    pub(crate) address: String,
    pub(crate) refusal: Refusal,
}

#[derive(Debug, Default)]
struct State {
    members: BTreeMap<u16, Member>,
    numbers: BTreeMap<IodId, u16>,
}

/// A registered iod, and the state of its connection.
#[derive(Clone, Debug)]
struct Member {
    registered: Registered,
    link: Option<Arc<Link>>,
    /// When the iod connected or disconnected last.
    since: Instant,
    stats: StatsReply,
    /// The mark (random number) in the last claim that the iod has accepted from this start of the mgr; `None` if it
    /// has accepted none.
    claimed: Option<u64>,
}

impl Member {
    /// Returns the state of a registered iod that has not connected since the start of the mgr.
    fn away(registered: Registered) -> Self {
        Member { registered, link: None, since: Instant::now(), stats: StatsReply::default(), claimed: None }
    }
}

/// A configured address, and the state of the connection to the iod at this address.
#[derive(Debug)]
struct Slot {
    address: Address,
    connection: watch::Sender<ConnectionState>,
    /// Whether the mgr has tried to connect to the address since the start of the mgr.
    tried: AtomicBool,
}

/// The state of the connection to a configured iod.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum ConnectionState {
    /// The mgr has not tried to connect to the address yet.
    New,
    /// The mgr is connected to the iod with this number.
    Up(u16),
    /// The iod is unreachable, or the mgr must not use it, for this reason. The mgr retries forever.
    Down(String),
}

/// What `weir status` shows of one iod.
#[derive(Clone, Debug)]
pub(crate) struct Report {
    pub(crate) address: String,
    pub(crate) registered: Option<Registered>,
    pub(crate) up: bool,
    pub(crate) problem: Option<String>,
    pub(crate) software: Option<String>,
    pub(crate) path: Option<String>,
    pub(crate) stats: StatsReply,
}

/// The tasks that keep the mgr connected to its iods. Dropping this value stops the tasks.
#[derive(Debug)]
pub(crate) struct Supervisors {
    _tasks: JoinSet<()>,
}

impl Iods {
    /// Loads the registered iods; none of them is connected yet. `epoch` must be larger than the epochs of all earlier
    /// starts of the mgr.
    pub(crate) fn load(
        (namespace, kinds): (Arc<Namespace<Embedded>>, Arc<Kinds>),
        cluster: ClusterFile,
        addresses: Vec<Address>,
        (store, epoch): (StoreId, u32),
        nonce: u64,
        patience: Duration,
        counters: net::Counters,
    ) -> Result<Self, Status> {
        let mut state = State::default();
        for registered in register::all(&namespace)? {
            state.numbers.insert(registered.id, registered.number);
            let member = Member::away(registered);
            state.members.insert(member.registered.number, member);
        }
        // Until an iod has accepted a claim of this start of the mgr, the metadata store may be an older copy. The
        // newer store may have allocated inode numbers that are free in this copy, so the store allocates no inode
        // number until then.
        namespace.hold_numbers(!state.members.is_empty());
        let slot = |address| Slot {
            address,
            connection: watch::channel(ConnectionState::New).0,
            tried: AtomicBool::new(false),
        };
        Ok(Iods {
            epoch,
            least_epoch: AtomicU32::new(epochs::recorded(&namespace)?),
            claims: Claims::new(namespace.clone(), store, epoch),
            tried: watch::channel(0).0,
            refused: watch::channel(None).0,
            namespace,
            kinds,
            cluster,
            counters,
            state: Mutex::new(state),
            patience,
            slots: addresses.into_iter().map(slot).collect(),
            first: AtomicU64::new(nonce),
            incarnation: AtomicU64::new(u64::from(epoch) << 32),
            registration: AtomicU64::new(first_registration()),
            verifiers: Verifiers::new(nonce),
            came_up: watch::channel(0).0,
        })
    }

    /// Starts one task for each configured address, which connects to the iod at this address. Completes when the mgr
    /// has tried each address once, or after [`START`].
    pub(crate) async fn supervise(self: &Arc<Self>) -> Supervisors {
        let mut tasks = JoinSet::new();
        for index in 0..self.slots.len() {
            let iods = self.clone();
            net::task::spawn_in(&mut tasks, async move {
                net::supervise("keeping an iod", iods.counters.clone(), || supervisor::run(iods.clone(), index)).await;
            });
        }
        let tried = async {
            for slot in &self.slots {
                // This wait cannot fail: it fails only after the sender of `connection` is dropped, and `self` owns
                // this sender.
                let _ = slot.connection.subscribe().wait_for(|connection| *connection != ConnectionState::New).await;
            }
        };
        if tokio::time::timeout(START, tried).await.is_err() {
            tracing::warn!("not all iods have answered; starting with those that have");
        }
        Supervisors { _tasks: tasks }
    }

    /// Returns the incarnation number for a new link, larger than the numbers of all earlier links.
    fn next_incarnation(&self) -> u64 {
        self.incarnation.fetch_add(1, Relaxed)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the cluster file: the identity and the secret of the file system.
    pub(crate) fn cluster(&self) -> &ClusterFile {
        &self.cluster
    }

    /// Returns the link (connections) to an iod; `Delay` while the iod is down.
    pub(crate) fn link(&self, number: u16) -> Result<Arc<Link>, Status> {
        let link = self.state().members.get(&number).and_then(|m| m.link.clone());
        link.filter(|link| !link.is_closed()).ok_or(Status::Delay)
    }

    /// Returns whether an iod is lost: it has been down for longer than clients wait for an iod.
    pub(crate) fn is_lost(&self, number: u16) -> bool {
        self.state().members.get(&number).is_some_and(|member| self.has_lost(member))
    }

    /// Returns the numbers of all lost iods: those that have been down for longer than clients wait for an iod.
    pub(crate) fn lost(&self) -> BTreeSet<u16> {
        let state = self.state();
        state.members.iter().filter(|(_, member)| self.has_lost(member)).map(|(number, _)| *number).collect()
    }

    fn has_lost(&self, member: &Member) -> bool {
        member.link.is_none() && member.since.elapsed() >= self.patience
    }

    /// Returns the current generation of a file's objects.
    pub(crate) fn generation(&self, file: FileId) -> Result<Generation, Status> {
        Ok(self.namespace.info(file)?.generation)
    }

    /// Returns the records of all iods that were ever registered, in the order of the iod numbers.
    pub(crate) fn all(&self) -> Vec<Registered> {
        self.state().members.values().map(|member| member.registered.clone()).collect()
    }

    /// Returns the number and the link (connections) of every connected iod, in the order of the iod numbers.
    pub(crate) fn up(&self) -> Vec<(u16, Arc<Link>)> {
        let state = self.state();
        let up = state.members.iter().filter_map(|(number, member)| Some((*number, member.link.clone()?)));
        up.filter(|(_, link)| !link.is_closed()).collect()
    }

    /// Returns the numbers of all iods that were ever registered.
    pub(crate) fn numbers(&self) -> Vec<u16> {
        self.state().members.keys().copied().collect()
    }

    /// Returns the record of the iod with this number; `Corrupt` if no iod was ever registered with it.
    pub(crate) fn registered(&self, number: u16) -> Result<Registered, Status> {
        self.state().members.get(&number).map(|m| m.registered.clone()).ok_or_else(|| {
            tracing::error!(number, "a layout names an iod that was never registered");
            Status::Corrupt
        })
    }

    /// Returns the iods with these numbers as data servers; `None` if one of these iods is down or serves no NFS.
    pub(crate) fn data_servers(&self, numbers: &[u16]) -> Option<Vec<DataServer>> {
        let state = self.state();
        let of = |number: &u16| {
            let link = state.members.get(number)?.link.as_ref().filter(|link| !link.is_closed())?;
            let (run, addresses) = (link.hello.verifier, link.data_server());
            (!addresses.is_empty()).then_some(DataServer { run, addresses })
        };
        numbers.iter().map(of).collect()
    }

    /// Returns the record of the iod with this identity; `None` if this iod was never registered.
    pub(crate) fn by_id(&self, id: IodId) -> Option<Registered> {
        let state = self.state();
        let number = state.numbers.get(&id)?;
        state.members.get(number).map(|m| m.registered.clone())
    }

    /// Returns the numbers of the iods that new files may use: the connected iods with enough free space, or all
    /// connected iods if none has enough.
    pub(crate) fn for_new_files(&self) -> Vec<u16> {
        let state = self.state();
        let up = state.members.values().filter(|m| m.link.as_ref().is_some_and(|l| !l.is_closed()));
        let up: Vec<_> = up.map(|m| (m.registered.number, m.stats.free)).collect();
        let roomy: Vec<u16> = up.iter().filter(|(_, free)| *free >= LOW_SPACE).map(|(n, _)| *n).collect();
        if roomy.is_empty() { up.into_iter().map(|(n, _)| n).collect() } else { roomy }
    }

    /// Returns a number that grows by one with every call, so that the first objects of consecutive files are on
    /// different iods.
    pub(crate) fn next_first(&self) -> u64 {
        self.first.fetch_add(1, Relaxed)
    }

    /// Returns the sequence number of a registration in the index of a log file, larger than all earlier ones.
    pub(crate) fn next_registration(&self) -> u64 {
        self.registration.fetch_add(1, SeqCst)
    }

    /// Returns the capacity and the free space of all disks of the iods together, in bytes. A disk that several iods
    /// share counts once.
    pub(crate) fn capacity(&self) -> (u64, u64) {
        let state = self.state();
        let mut disks: BTreeMap<(String, u64), (u64, u64)> = BTreeMap::new();
        for member in state.members.values() {
            let device = member.stats.counters.iter().find(|c| c.name == DEVICE_COUNTER).map(|c| c.value);
            let host = member.registered.local.as_ref().map(|local| local.boot_id.clone());
            let disk = match (host, device) {
                (Some(host), Some(device)) => (host, device),
                _ => (member.registered.id.to_string(), 0),
            };
            disks.insert(disk, (member.stats.capacity, member.stats.free));
        }
        disks.values().fold((0, 0), |(all, free), disk| (all.saturating_add(disk.0), free.saturating_add(disk.1)))
    }

    /// Returns the state of every iod: of the iods at the configured addresses, and of all other registered iods.
    pub(crate) fn report(&self) -> Vec<Report> {
        let state = self.state();
        let mut reports = Vec::new();
        let mut shown = Vec::new();
        for slot in &self.slots {
            let connection = slot.connection.borrow().clone();
            let address = slot.address.to_string();
            let number = match &connection {
                ConnectionState::Up(number) => Some(*number),
                _ => state.members.values().find(|m| m.registered.tcp.contains(&address)).map(|m| m.registered.number),
            };
            let problem = match connection {
                ConnectionState::Down(problem) => Some(problem),
                _ => None,
            };
            shown.extend(number);
            reports.push(report(address, number.and_then(|n| state.members.get(&n)), problem));
        }
        for member in state.members.values().filter(|m| !shown.contains(&m.registered.number)) {
            let address = member.registered.tcp.first().cloned().unwrap_or_default();
            let problem = "holds data, but is not in the configuration of the mgr".to_owned();
            reports.push(report(address, Some(member), Some(problem)));
        }
        reports
    }
}

/// Name of the counter by which an iod reports the device number of the disk that holds its objects.
const DEVICE_COUNTER: &str = "store.device";

fn report(address: String, member: Option<&Member>, problem: Option<String>) -> Report {
    let link = member.and_then(|m| m.link.as_ref()).filter(|link| !link.is_closed());
    Report {
        address,
        registered: member.map(|m| m.registered.clone()),
        up: link.is_some(),
        problem,
        software: link.map(|link| link.proven.software.clone()),
        path: link.map(|link| link.path().to_string()),
        stats: member.map(|m| m.stats.clone()).unwrap_or_default(),
    }
}

/// Returns the first sequence number of this start of the mgr for registrations in the index of a log file: the wall
/// clock in nanoseconds, so that the numbers also grow over restarts of the mgr.
fn first_registration() -> u64 {
    let since = net::clock::now().duration_since(std::time::SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX / 2).max(FIRST_REGISTRATION_MIN)
}
