//! The plan of a simulated run, drawn from its seed: size of the cluster, settings, operations of the clients, and
//! faults.

mod moves;

pub use moves::{Move, TRIES};

use crate::hosts::{AUDITOR, CLIENT, IOD, MGR};
use crate::network::{Host, LinkConditions};
use crate::random::Rng;
use client::options::Rule;
use client::{Durable, Origin, Settings};
use std::time::Duration;
use types::planted::Planted;

/// How severe the faults of a run are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Level {
    /// No faults; no operation may fail.
    Calm,
    /// Only faults that the protocols hide: lost connections, delayed segments, and daemons that restart soon. An
    /// operation of a client may fail only if its outcome is in doubt, or if a power loss has lost its file.
    Mild,
    /// All kinds of faults, including faults that make operations fail.
    Rough,
}

/// A fault of a run. Fields whose names end in `ms` contain milliseconds. The fields `host`, `iod` and `client` contain
/// the numbers of hosts, iods and clients.
#[allow(missing_docs)] // each variant's text says what its numbers are
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The mgr dies and restarts after `down_ms`.
    Mgr { power: bool, down_ms: u64 },
    /// The mgr dies after it has sent `pieces` more network segments, and restarts after `down_ms`.
    MgrAfter { pieces: u64, down_ms: u64 },
    /// The mgr's disk fails after `changes` more writes and syncs, and its host loses power. The mgr restarts after
    /// `down_ms`.
    MgrDisk { changes: u64, down_ms: u64 },
    /// An iod dies and restarts after `down_ms`.
    Iod { iod: usize, power: bool, down_ms: u64 },
    /// An iod dies after it has sent `pieces` more network segments, and restarts after `down_ms`.
    IodAfter { iod: usize, pieces: u64, power: bool, down_ms: u64 },
    /// The disk of an iod fails after `changes` more disk operations that change data. Then the host of the iod loses
    /// power, and the iod restarts after `down_ms`.
    IodDisk { iod: usize, changes: u64, down_ms: u64 },
    /// An iod loses power and restarts with an older copy of its disk. After `ms`, the current disk is restored.
    IodRolledBack { iod: usize, ms: u64 },
    /// The mgr dies and restarts with an older copy of its disk. After `ms`, the current disk is restored.
    MgrRolledBack { ms: u64 },
    /// A client dies and does not restart.
    Client { client: u64 },
    /// A random connection of the host is reset.
    Reset { host: Host },
    /// A random connection of the host is reset, `times` times. Before each reset, the host sends `pieces` more network
    /// segments.
    Flaky { host: Host, pieces: u64, times: u64 },
    /// A random connection of the host loses all bytes from now on. Neither end is notified.
    Lose { host: Host },
    /// Two hosts are partitioned for `ms`.
    Cut { a: Host, b: Host, ms: u64 },
    /// For `ms`, the network has other delays and another window (bytes in flight): those in `conditions`.
    Storm { conditions: LinkConditions, ms: u64 },
    /// A percentage of the operations on the disk of an iod fails for `ms`.
    IodErrors { iod: usize, percent: u64, ms: u64 },
    /// For `ms`, an iod has a slow disk: the iod handles each request up to `slow_ms` later.
    IodSlow { iod: usize, slow_ms: u64, ms: u64 },
    /// The disk of an iod is full for `ms`.
    IodFull { iod: usize, ms: u64 },
    /// A percentage of the writes and syncs of the mgr's disk fails for `ms`.
    MgrErrors { percent: u64, ms: u64 },
    /// The mgr's disk is full for `ms`.
    MgrFull { ms: u64 },
    /// For `ms`, each flush of the mgr's disk takes up to `flush_ms`.
    MgrSlow { flush_ms: u64, ms: u64 },
}

/// Values of policy settings. Each time a client changes its policy, it picks one entry of this list.
pub const POLICIES: &[(&str, &str)] = &[
    ("access", "direct"),
    ("access", "direct"),
    ("access", "unbuffered"),
    ("gather_size", "full"),
    ("gather_size", "0"),
    ("gather_size", "1K"),
    ("gather_delay", "max"),
    ("gather_delay", "5ms"),
    ("gather_delay", "1s"),
    ("layout_when", "auto"),
    ("layout_when", "open"),
    ("layout_when", "first-io"),
    ("layout_when", "2K"),
    ("write_threshold", "0"),
    ("write_threshold", "300"),
    ("write_threshold", "2K"),
    ("write_threshold", "max"),
    ("write_threshold", "auto"),
    ("read_threshold", "0"),
    ("read_threshold", "512"),
];

/// The plan of one client of a run.
#[derive(Clone, Debug)]
pub struct ClientPlan {
    /// Whether the client uses the direct path to the iods.
    pub direct: bool,
    /// The policy of the client's mount at the start of the run.
    pub policy: Settings,
    /// Percentage of operations before which the client changes the policy of its mount.
    pub policy_percent: u64,
    /// Whether file data on the network have checksums.
    pub checksums: bool,
    /// The number of operations of each process of the client. All processes run at the same time.
    pub processes: Vec<u64>,
    /// Maximum pause between two operations of a process, in milliseconds.
    pub think_ms: u64,
}

impl ClientPlan {
    /// Returns a random plan of a client.
    fn draw(rng: &mut Rng) -> Self {
        ClientPlan {
            direct: rng.percent(75),
            policy: Settings {
                write_threshold: Some(*rng.pick(&[
                    Rule::Fixed(0),
                    Rule::Fixed(0),
                    Rule::Fixed(100),
                    Rule::Fixed(1 << 10),
                    Rule::Fixed(8 << 10),
                    Rule::Fixed(u64::MAX),
                    Rule::Auto,
                ])),
                read_threshold: Some(*rng.pick(&[0, 0, 0, 1 << 10, u64::MAX])),
                ..Settings::default()
            },
            policy_percent: 0,
            checksums: rng.percent(80),
            processes: (0..rng.between(1, 2)).map(|_| rng.between(8, 30)).collect(),
            think_ms: *rng.pick(&[0, 5, 50, 500]),
        }
    }
}

/// The plan of a simulated run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The seed from which the whole plan is drawn.
    pub seed: u64,
    /// The deliberate bug that the run enables, if any.
    pub planted: Option<Planted>,
    /// How severe the faults of the run are.
    pub level: Level,
    /// Number of iods in the cluster.
    pub iods: usize,
    /// The plan of each client.
    pub clients: Vec<ClientPlan>,
    /// Whether the stores of the iods keep checksums of all blocks.
    pub block_checksums: bool,
    /// Stripe unit of all files in bytes.
    pub unit: u64,
    /// Number of iods for each new file; zero: all iods.
    pub stripe_count: u32,
    /// Whether new files are log files (`layout=log`). A move of a log file folds it into a striped file.
    pub log_files: bool,
    /// Maximum time for which the mgr gathers small writes, in milliseconds; zero disables gathering.
    pub gather_delay_ms: u32,
    /// Memory of the mgr for gathered writes, in bytes.
    pub gather_bytes: u64,
    /// Maximum size of an inline file in bytes.
    pub inline_max: u64,
    /// Duration of a client's lease in seconds.
    pub lease_secs: u32,
    /// Lifetime of a capability in seconds.
    pub capability_secs: u32,
    /// How long clients retry a request before the operation fails.
    pub retry: Duration,
    /// Delays and send window of the simulated network without faults.
    pub conditions: LinkConditions,
    /// Maximum duration of a flush of the mgr's disk in milliseconds.
    pub flush_ms: u64,
    /// Number of permanent files: all clients use these files, and no client renames or removes them.
    pub files: u64,
    /// Percentage of file creations that return before the file is durable.
    pub unsynced_percent: u64,
    /// Percentage of clients whose changes become durable only by fsync (`durable=fsync`). If the mgr's host may lose
    /// power in the plan, all clients make changes durable at close instead.
    pub soon_percent: u64,
    /// Percentage of operations that lock or unlock a file.
    pub lock_percent: u64,
    /// The faults, each with its time in milliseconds after the start of the run.
    pub faults: Vec<(u64, Fault)>,
    /// The moves of files to new objects, each with its time in milliseconds after the start of the run.
    pub moves: Vec<(u64, Move)>,
    /// When the last fault has ended, in milliseconds after the start of the run.
    pub quiet_ms: u64,
}

/// Maximum duration of a mild fault in milliseconds. It is so short that retries succeed and no lease expires.
const MILD_MS: u64 = 1500;

impl Plan {
    /// Returns a plan that often creates the conditions in which the bug `on` has an effect. The caller enables the
    /// bug.
    pub fn focused(seed: u64, on: Planted) -> Self {
        let mut plan = Plan::new(seed);
        let mut rng = Rng::new(seed, "focus");
        plan.level = if on == Planted::CommitVerifier { Level::Rough } else { Level::Mild };
        (plan.faults, plan.moves, plan.quiet_ms) = (Vec::new(), Vec::new(), 1000);
        plan.log_files = false;
        plan.conditions = LinkConditions { delay_ms: rng.between(1, 3), late_percent: 0, late_ms: 0, window: 64 << 10 };
        plan.files = 1;
        plan.lock_percent = if on == Planted::LockTable { 40 } else { plan.lock_percent };
        for client in &mut plan.clients {
            (client.think_ms, client.direct) = (20, true);
            (client.policy, client.policy_percent) = (Settings::default(), 0);
            client.processes = vec![30, 30];
        }
        match on {
            Planted::EarlySwap => plan.focus_on_moves(&mut rng),
            Planted::SameStream => plan.focus_on_streams(&mut rng),
            Planted::ReplyCache | Planted::CommitVerifier | Planted::LockTable => plan.focus_on_crashes(on, &mut rng),
        }
        plan
    }

    /// Adds faults that often make the bug `on` visible.
    fn focus_on_crashes(&mut self, on: Planted, rng: &mut Rng) {
        for round in 0..6 {
            let at = round * 60 + rng.between(0, 50);
            let iod = rng.below(self.iods as u64) as usize;
            let (pieces, down_ms) = (rng.between(1, 12), rng.between(10, 60));
            let fault = match on {
                Planted::ReplyCache => Fault::Flaky { host: MGR, pieces, times: 8 },
                Planted::CommitVerifier => Fault::IodAfter { iod, pieces, power: true, down_ms },
                _ => continue,
            };
            self.faults.push((at, fault));
        }
    }

    /// Returns the plan that follows from a seed.
    pub fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed, "plan");
        let level = match rng.below(10) {
            0 => Level::Calm,
            1..=3 => Level::Mild,
            _ => Level::Rough,
        };
        let iods = rng.between(1, 4) as usize;
        let mut clients: Vec<ClientPlan> = (0..rng.between(1, 4)).map(|_| ClientPlan::draw(&mut rng)).collect();
        let (mut policies, mut gathering) = (Rng::new(seed, "policies"), Rng::new(seed, "gathering"));
        for client in &mut clients {
            let (name, value) = *policies.pick(POLICIES);
            // If the random setting is a write threshold, it replaces the write threshold that `client` has set.
            let _ = client.policy.set(Origin::Mount, name.as_bytes(), value.as_bytes());
            client.policy_percent = *policies.pick(&[0, 0, 5, 30]);
        }
        let lease_secs = rng.between(5, 20) as u32;
        let conditions = Plan::draw_conditions(&mut rng);
        let mut plan = Plan {
            seed,
            planted: None,
            level,
            iods,
            block_checksums: Rng::new(seed, "block checksums").percent(30),
            stripe_count: 0,
            log_files: Rng::new(seed, "log files").percent(40),
            unit: *rng.pick(&[64, 512, 1024, 4096]),
            gather_delay_ms: *gathering.pick(&[0, 2, 2, 20, 1000]),
            gather_bytes: *gathering.pick(&[8 << 10, 64 << 20]),
            inline_max: *Rng::new(seed, "inline").pick(&[0, 0, 200, 4096, 16384]),
            lease_secs,
            capability_secs: *rng.pick(&[5, 30, 3600]),
            retry: Duration::from_secs(rng.between(20, 60)),
            conditions,
            flush_ms: *rng.pick(&[0, 1, 5]),
            files: rng.between(1, 3),
            unsynced_percent: *Rng::new(seed, "unsynced").pick(&[0, 50, 100]),
            soon_percent: *Rng::new(seed, "soon").pick(&[0, 50, 100]),
            lock_percent: 7,
            faults: Vec::new(),
            moves: Vec::new(),
            quiet_ms: 0,
            clients,
        };
        if level != Level::Calm {
            plan.draw_faults(&mut rng);
        }
        plan.draw_older();
        plan.draw_moves();
        plan
    }

    /// Adds a fault to some plans with severe faults: an iod or the mgr starts with an older copy of its disk. The
    /// fault follows a restart of the mgr, which gives the iods a new mark. If the mgr gets the older copy, the plan
    /// has only these two faults, because the mgr detects the older copy only when it reaches an iod.
    fn draw_older(&mut self) {
        let mut rng = Rng::new(self.seed, "older disks");
        if self.level != Level::Rough || !rng.percent(20) {
            return;
        }
        let span = 200 + self.busy_ms();
        let (died, down_ms) = (rng.between(50, span / 2), rng.between(10, 300));
        let at = died + down_ms + rng.between(500, 500 + span);
        let ms = rng.between(500, 8000);
        if rng.percent(40) {
            self.faults.clear();
            self.quiet_ms = 0;
            self.faults.push((at, Fault::MgrRolledBack { ms }));
        } else {
            self.faults.push((at, Fault::IodRolledBack { iod: rng.below(self.iods as u64) as usize, ms }));
        }
        self.faults.push((died, Fault::Mgr { power: false, down_ms }));
        self.quiet_ms = self.quiet_ms.max(at + ms + 1000);
        self.faults.sort_by_key(|(at, _)| *at);
    }

    fn draw_conditions(rng: &mut Rng) -> LinkConditions {
        LinkConditions {
            delay_ms: *rng.pick(&[0, 1, 2, 10]),
            late_percent: *rng.pick(&[0, 1, 10]),
            late_ms: *rng.pick(&[5, 50, 300]),
            window: *rng.pick(&[4 << 10, 64 << 10, 1 << 20]),
        }
    }

    /// Returns when the client's changes become durable. In plans in which the mgr's host may lose power, this is
    /// always [`Durable::Close`]. The model cannot predict which changes a power loss may lose with
    /// [`Durable::Fsync`]; `crates/meta/tests/crash.rs` tests these losses.
    pub fn durable(&self, client: Host) -> Durable {
        let powered_off = |fault: &Fault| matches!(fault, Fault::Mgr { power: true, .. } | Fault::MgrDisk { .. });
        let soon =
            (CLIENT..AUDITOR).contains(&client) && Rng::new(self.seed ^ client, "soon").percent(self.soon_percent);
        if soon && !self.faults.iter().any(|(_, fault)| powered_off(fault)) { Durable::Fsync } else { Durable::Close }
    }

    /// Returns whether every client always reaches the mgr before its lease expires.
    pub fn keeps_leases(&self) -> bool {
        let harmless = |fault: &Fault| match fault {
            Fault::Iod { .. } | Fault::IodAfter { .. } | Fault::IodDisk { .. } | Fault::IodErrors { .. } => true,
            Fault::IodSlow { .. } | Fault::IodFull { .. } | Fault::Reset { .. } | Fault::Flaky { .. } => true,
            _ => self.level == Level::Mild,
        };
        self.faults.iter().all(|(_, fault)| harmless(fault))
    }

    fn draw_faults(&mut self, rng: &mut Rng) {
        let count = rng.between(1, if self.level == Level::Mild { 4 } else { 8 });
        let span = 100 + self.busy_ms() * rng.between(5, 12) / 10;
        for _ in 0..count {
            let at = rng.between(0, span);
            let fault = if self.level == Level::Mild { self.mild(rng) } else { self.rough(rng) };
            let lasts = match &fault {
                Fault::Mgr { down_ms, .. } | Fault::MgrAfter { down_ms, .. } | Fault::MgrDisk { down_ms, .. } => {
                    *down_ms
                }
                Fault::Iod { down_ms, .. } | Fault::IodAfter { down_ms, .. } | Fault::IodDisk { down_ms, .. } => {
                    *down_ms
                }
                Fault::Cut { ms, .. } | Fault::Storm { ms, .. } | Fault::MgrFull { ms } => *ms,
                Fault::IodErrors { ms, .. } | Fault::IodSlow { ms, .. } | Fault::IodFull { ms, .. } => *ms,
                Fault::MgrErrors { ms, .. } | Fault::MgrSlow { ms, .. } => *ms,
                Fault::IodRolledBack { ms, .. } | Fault::MgrRolledBack { ms } => *ms,
                Fault::Client { .. } | Fault::Reset { .. } | Fault::Flaky { .. } | Fault::Lose { .. } => 0,
            };
            self.quiet_ms = self.quiet_ms.max(at + lasts + 1000);
            self.faults.push((at, fault));
        }
        self.faults.sort_by_key(|(at, _)| *at);
    }

    /// Returns how long the clients of the run work approximately, in milliseconds, if no fault delays them.
    fn busy_ms(&self) -> u64 {
        let each =
            6 * self.conditions.delay_ms + self.flush_ms + self.conditions.late_percent * self.conditions.late_ms / 50;
        let of_client = |c: &ClientPlan| c.processes.iter().max().map_or(0, |n| n * (c.think_ms / 2 + each));
        self.clients.iter().map(of_client).max().unwrap_or(0)
    }

    fn some_host(&self, rng: &mut Rng) -> Host {
        match rng.below(3) {
            0 => MGR,
            1 => IOD + rng.below(self.iods as u64),
            _ => CLIENT + rng.below(self.clients.len() as u64),
        }
    }

    fn mild(&self, rng: &mut Rng) -> Fault {
        let iod = rng.below(self.iods as u64) as usize;
        let short = rng.between(10, MILD_MS);
        match rng.below(8) {
            0 => Fault::Mgr { power: rng.percent(30), down_ms: short },
            1 => Fault::MgrAfter { pieces: rng.between(1, 60), down_ms: short },
            2 => Fault::Iod { iod, power: rng.percent(30), down_ms: short },
            3 => Fault::IodAfter { iod, pieces: rng.between(1, 60), power: rng.percent(60), down_ms: short },
            4 => Fault::Storm { conditions: storm(rng), ms: short },
            5 => Fault::Cut { a: MGR, b: CLIENT + rng.below(self.clients.len() as u64), ms: short },
            6 => Fault::Reset { host: self.some_host(rng) },
            _ => self.flaky(rng),
        }
    }

    fn flaky(&self, rng: &mut Rng) -> Fault {
        Fault::Flaky { host: self.some_host(rng), pieces: rng.between(1, 20), times: rng.between(2, 12) }
    }

    fn rough(&self, rng: &mut Rng) -> Fault {
        let iod = rng.below(self.iods as u64) as usize;
        let ms = *rng.pick(&[50, 1000, 8000, 40_000]);
        let ms = rng.between(ms / 2, ms);
        let longest = *rng.pick(&[200, 3000, 30_000]);
        let down_ms = rng.between(10, longest);
        match rng.below(22) {
            0 | 1 => Fault::Mgr { power: rng.percent(50), down_ms },
            2 => Fault::MgrAfter { pieces: rng.between(1, 200), down_ms },
            3 => Fault::MgrDisk { changes: rng.between(0, 300), down_ms },
            4 | 5 => Fault::Iod { iod, power: rng.percent(50), down_ms },
            6 => Fault::IodAfter { iod, pieces: rng.between(1, 100), power: rng.percent(60), down_ms },
            7 => Fault::IodDisk { iod, changes: rng.between(0, 60), down_ms },
            8 if self.clients.len() > 1 => Fault::Client { client: rng.below(self.clients.len() as u64) },
            9 => Fault::Lose { host: self.some_host(rng) },
            10 | 11 => {
                let a = self.some_host(rng);
                let b = if a == MGR { IOD + iod as u64 } else { MGR };
                Fault::Cut { a, b, ms }
            }
            12 => {
                let client = CLIENT + rng.below(self.clients.len() as u64);
                Fault::Cut { a: client, b: IOD + iod as u64, ms }
            }
            13 => Fault::Storm { conditions: storm(rng), ms },
            14 => Fault::IodErrors { iod, percent: rng.between(5, 60), ms },
            15 => Fault::IodSlow { iod, slow_ms: *rng.pick(&[20, 500, 4000]), ms },
            16 => Fault::IodFull { iod, ms },
            17 => Fault::MgrErrors { percent: rng.between(5, 40), ms },
            18 if rng.percent(50) => Fault::MgrFull { ms },
            18 => Fault::MgrSlow { flush_ms: *rng.pick(&[50, 500, 3000]), ms },
            19 => Fault::Reset { host: self.some_host(rng) },
            _ => self.flaky(rng),
        }
    }
}

fn storm(rng: &mut Rng) -> LinkConditions {
    LinkConditions {
        delay_ms: *rng.pick(&[20, 200, 1000]),
        late_percent: *rng.pick(&[5, 30]),
        late_ms: *rng.pick(&[100, 3000]),
        window: *rng.pick(&[1 << 10, 16 << 10]),
    }
}
