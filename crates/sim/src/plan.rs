//! The plan of a run, drawn from its seed: size of the cluster, settings, work of the clients, and faults.

mod moves;

pub use moves::{Move, TRIES};

use crate::hosts::{AUDITOR, CLIENT, IOD, MGR};
use crate::network::{Host, Weather};
use crate::random::Rng;
use client::options::Rule;
use client::{Durable, Origin, Settings};
use std::time::Duration;
use types::planted::Planted;

/// The severity of the faults.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Level {
    /// No faults: no operation may fail.
    Calm,
    /// Only faults that the protocols hide: lost connections, late bytes, daemons that restart soon. An operation may
    /// fail only if its outcome is in doubt because the mgr died.
    Mild,
    /// All kinds of faults.
    Rough,
}

/// A fault. Times are in milliseconds; hosts, iods and clients are numbers.
#[allow(missing_docs)] // each variant's text says what its numbers are
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The mgr dies and restarts.
    Mgr { power: bool, down_ms: u64 },
    /// The mgr dies when it has sent this number of further pieces.
    MgrAfter { pieces: u64, down_ms: u64 },
    /// The mgr's disk dies after this number of further changes, and its host with it.
    MgrDisk { changes: u64, down_ms: u64 },
    /// An iod dies and restarts.
    Iod { iod: usize, power: bool, down_ms: u64 },
    /// An iod dies when it has sent this number of further pieces.
    IodAfter { iod: usize, pieces: u64, power: bool, down_ms: u64 },
    /// The disk of an iod dies after this number of further changes, and its host with it.
    IodDisk { iod: usize, changes: u64, down_ms: u64 },
    /// An iod loses power and restarts with an older copy of its disk, until the current disk is restored.
    IodRolledBack { iod: usize, ms: u64 },
    /// The mgr dies and restarts with an older copy of its disk, until the current disk is restored.
    MgrRolledBack { ms: u64 },
    /// A client dies permanently.
    Client { client: u64 },
    /// A connection of the host is reset.
    Reset { host: Host },
    /// A random connection of the host is reset `times` times, each time when the host has sent `pieces` further
    /// pieces.
    Flaky { host: Host, pieces: u64, times: u64 },
    /// A connection of the host silently loses everything.
    Lose { host: Host },
    /// Two hosts are partitioned for a while.
    Cut { a: Host, b: Host, ms: u64 },
    /// The network is slow and unsteady for a while.
    Storm { weather: Weather, ms: u64 },
    /// Some operations on the disk of an iod fail for a while.
    IodErrors { iod: usize, percent: u64, ms: u64 },
    /// The disk of an iod is slow for a while.
    IodSlow { iod: usize, slow_ms: u64, ms: u64 },
    /// The disk of an iod is full for a while.
    IodFull { iod: usize, ms: u64 },
    /// Some operations on the mgr's disk fail for a while.
    MgrErrors { percent: u64, ms: u64 },
    /// The mgr's disk is full for a while.
    MgrFull { ms: u64 },
    /// The mgr's disk is slow for a while.
    MgrSlow { flush_ms: u64, ms: u64 },
}

/// Policy settings that clients choose from, one part at a time.
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

/// The plan of one client.
#[derive(Clone, Debug)]
pub struct ClientPlan {
    /// Whether the client uses the direct path.
    pub direct: bool,
    /// The policy of the mount.
    pub policy: Settings,
    /// Percentage of operations before which the client changes its policy.
    pub policy_percent: u64,
    /// Whether payloads carry checksums.
    pub checksums: bool,
    /// Number of operations of each concurrent process.
    pub processes: Vec<u64>,
    /// Longest pause between two operations in milliseconds.
    pub think_ms: u64,
}

/// The plan of a run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The seed from which everything is drawn.
    pub seed: u64,
    /// A deliberate bug to switch on.
    pub planted: Option<Planted>,
    /// The severity of the faults.
    pub level: Level,
    /// Number of iods.
    pub iods: usize,
    /// The clients.
    pub clients: Vec<ClientPlan>,
    /// Whether the stores of the iods keep checksums of all blocks.
    pub block_checksums: bool,
    /// Stripe unit in bytes.
    pub unit: u64,
    /// Number of iods of a file; zero: all.
    pub stripe_count: u32,
    /// Longest time for which the mgr gathers small writes, in milliseconds; zero disables gathering.
    pub gather_delay_ms: u32,
    /// Memory for gathered writes, in bytes.
    pub gather_bytes: u64,
    /// Largest inline file in bytes.
    pub inline_max: u64,
    /// Lease in seconds.
    pub lease_secs: u32,
    /// Validity of a capability in seconds.
    pub capability_secs: u32,
    /// How long clients retry a request before it fails.
    pub retry: Duration,
    /// The network without faults.
    pub weather: Weather,
    /// Longest duration of a flush of the mgr's disk in milliseconds.
    pub flush_ms: u64,
    /// Number of files that all clients use and that keep their names.
    pub files: u64,
    /// Percentage of created files for which the client does not wait for durability.
    pub unsynced_percent: u64,
    /// Percentage of clients that wait for durability only in syncs. It applies to plans in which the mgr's host never
    /// loses power.
    pub soon_percent: u64,
    /// Percentage of operations that lock or unlock.
    pub lock_percent: u64,
    /// The faults with their times in milliseconds.
    pub faults: Vec<(u64, Fault)>,
    /// The moves of files to new objects, with their times in milliseconds.
    pub moves: Vec<(u64, Move)>,
    /// Time at which the last fault has ended, in milliseconds.
    pub quiet_ms: u64,
}

/// Longest duration of a mild fault in milliseconds: so short that retries succeed and no lease expires.
const MILD_MS: u64 = 1500;

impl Plan {
    /// Returns the plan of a seed with frequent conditions that reveal this bug. The plan does not switch the bug on.
    pub fn focused(seed: u64, on: Planted) -> Self {
        let mut plan = Plan::new(seed);
        let mut rng = Rng::new(seed, "focus");
        plan.level = if on == Planted::CommitVerifier { Level::Rough } else { Level::Mild };
        (plan.faults, plan.moves, plan.quiet_ms) = (Vec::new(), Vec::new(), 1000);
        plan.weather = Weather { delay_ms: rng.between(1, 3), late_percent: 0, late_ms: 0, window: 64 << 10 };
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

    /// Adds the faults that reveal this bug.
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

    /// Returns the plan of a seed.
    pub fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed, "plan");
        let level = match rng.below(10) {
            0 => Level::Calm,
            1..=3 => Level::Mild,
            _ => Level::Rough,
        };
        let iods = rng.between(1, 4) as usize;
        let client = |rng: &mut Rng| ClientPlan {
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
        };
        let mut clients: Vec<ClientPlan> = (0..rng.between(1, 4)).map(|_| client(&mut rng)).collect();
        let (mut policies, mut gathering) = (Rng::new(seed, "policies"), Rng::new(seed, "gathering"));
        for client in &mut clients {
            let (name, value) = *policies.pick(POLICIES);
            // A threshold drawn here replaces the one drawn above.
            let _ = client.policy.set(Origin::Mount, name.as_bytes(), value.as_bytes());
            client.policy_percent = *policies.pick(&[0, 0, 5, 30]);
        }
        let lease_secs = rng.between(5, 20) as u32;
        let weather = Plan::draw_weather(&mut rng);
        let mut plan = Plan {
            seed,
            planted: None,
            level,
            iods,
            block_checksums: Rng::new(seed, "block checksums").percent(30),
            stripe_count: 0,
            unit: *rng.pick(&[64, 512, 1024, 4096]),
            gather_delay_ms: *gathering.pick(&[0, 2, 2, 20, 1000]),
            gather_bytes: *gathering.pick(&[8 << 10, 64 << 20]),
            inline_max: *Rng::new(seed, "inline").pick(&[0, 0, 200, 4096, 16384]),
            lease_secs,
            capability_secs: *rng.pick(&[5, 30, 3600]),
            retry: Duration::from_secs(rng.between(20, 60)),
            weather,
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

    /// Adds older disk copies to some plans with rough faults. They come after a restart of the mgr, because only then the iods have a
    /// new mark. An older copy of the mgr's disk is the only other fault of its plan, because the mgr cannot recognize
    /// the copy before it reaches an iod.
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

    fn draw_weather(rng: &mut Rng) -> Weather {
        Weather {
            delay_ms: *rng.pick(&[0, 1, 2, 10]),
            late_percent: *rng.pick(&[0, 1, 10]),
            late_ms: *rng.pick(&[5, 50, 300]),
            window: *rng.pick(&[4 << 10, 64 << 10, 1 << 20]),
        }
    }

    /// Returns which changes a client waits for until they are durable. If the mgr's host may lose power, the answer is
    /// always [`Durable::Close`], because this model does not cover what else may be lost (`crates/meta/tests/crash.rs`
    /// does).
    pub fn durable(&self, client: Host) -> Durable {
        let dark = |fault: &Fault| matches!(fault, Fault::Mgr { power: true, .. } | Fault::MgrDisk { .. });
        let soon =
            (CLIENT..AUDITOR).contains(&client) && Rng::new(self.seed ^ client, "soon").percent(self.soon_percent);
        if soon && !self.faults.iter().any(|(_, fault)| dark(fault)) { Durable::Fsync } else { Durable::Close }
    }

    /// Returns whether every client reaches the mgr in time, so that no client can lose its lease.
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

    /// Returns the approximate duration of the clients' work without faults, in milliseconds.
    fn busy_ms(&self) -> u64 {
        let each = 6 * self.weather.delay_ms + self.flush_ms + self.weather.late_percent * self.weather.late_ms / 50;
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
            4 => Fault::Storm { weather: storm(rng), ms: short },
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
            13 => Fault::Storm { weather: storm(rng), ms },
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

fn storm(rng: &mut Rng) -> Weather {
    Weather {
        delay_ms: *rng.pick(&[20, 200, 1000]),
        late_percent: *rng.pick(&[5, 30]),
        late_ms: *rng.pick(&[100, 3000]),
        window: *rng.pick(&[1 << 10, 16 << 10]),
    }
}
