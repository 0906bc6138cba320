//! Hostile frames: random and damaged messages (frames) to a running mgr and iod, from clients without a session and in
//! valid sessions.
//!
//! No daemon may panic, memory must stay bounded, and the daemons must serve a well-behaved client during the attack.
//!
//! `cargo xtask hostile` runs this test with a million frames and shows the response times of the well-behaved client.

#[path = "../volume/cluster.rs"]
#[allow(dead_code)]
mod cluster;
mod data;
mod link;
#[path = "../../../../fuzz/mutate.rs"]
mod mutate;
#[allow(dead_code)]
mod nfs;
mod seeded_random;
mod well_behaved;

use cluster::Cluster;
use data::Target;
use link::{Place, STUCK};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use well_behaved::{Times, WellBehaved, quantile};

/// Number of attackers that attack each of the two daemons at the same time.
const ATTACKERS: u64 = 2;
/// Largest growth of this process's resident memory, in bytes. The process contains the daemons, the attackers and the
/// well-behaved client.
const GROWTH_MAX: u64 = 768 << 20;

static PANICS: AtomicU64 = AtomicU64::new(0);

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

/// Returns the resident memory of this process, in bytes.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|l| l.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) << 10
}

/// What one attacker did: the number of frames of each kind, and the number of requests with invalid capabilities.
type Done = (BTreeMap<&'static str, u64>, u64);

struct Plan {
    mgr: Place,
    /// The TCP address of the mgr, for the well-behaved client. Attackers use a Unix socket.
    front: Place,
    iod: Target,
    frames: u64,
    /// Number of frames that each attacker sends per second; 0 stands for no limit.
    rate: u64,
    seed: u64,
    /// Whether this run measures the response times of the well-behaved client.
    measured: bool,
}

fn attack(plan: &Plan, who: u64, sent: &AtomicU64) -> Done {
    if plan.measured {
        // Run the attackers at low priority, so that they take no CPU time from the daemons. Real attackers run on
        // other machines and take none.
        let _ = rustix::process::setpriority_process(None, 19);
    }
    let seed = plan.seed.wrapping_add(who);
    let mut mgr = (who < ATTACKERS).then(|| nfs::Attacker::new(plan.mgr.clone(), seed));
    let mut iod = data::Attacker::new(plan.iod.clone(), seed);
    let mut kinds = BTreeMap::new();
    let begun = Instant::now();
    for n in 0..plan.frames / (2 * ATTACKERS) {
        let kind = mgr.as_mut().map_or_else(|| iod.frame(), |mgr| mgr.frame());
        *kinds.entry(kind).or_default() += 1;
        sent.fetch_add(1, Relaxed);
        if plan.rate > 0 && n % 16 == 0 {
            let due = Duration::from_secs_f64(n as f64 / plan.rate as f64);
            std::thread::sleep(due.saturating_sub(begun.elapsed()));
        }
    }
    mgr.iter_mut().for_each(|mgr| mgr.settle(0));
    (kinds, iod.bad)
}

/// Runs the attackers beside the well-behaved client. Returns the response times of the client before and during the
/// attack, and what the attackers did.
fn run(plan: &Plan, quiet_rounds: u64, show: bool) -> (Times, Times, Done) {
    let mut good = WellBehaved::new(&plan.front, &plan.iod).expect("a good client is served");
    for n in 0..quiet_rounds {
        good.round(n).expect("a good client is served");
    }
    let quiet = std::mem::take(&mut good.times);
    let (sent, over) = (AtomicU64::new(0), AtomicBool::new(false));
    let mut all = Done::default();
    std::thread::scope(|scope| {
        let client = scope.spawn(|| {
            let mut n = quiet_rounds;
            while !over.load(Relaxed) {
                good.round(n).expect("a good client is served among others");
                n += 1;
            }
        });
        let sent = &sent;
        let attackers: Vec<_> = (0..2 * ATTACKERS).map(|who| scope.spawn(move || attack(plan, who, sent))).collect();
        let mut shown = 0;
        while show && attackers.iter().any(|a| !a.is_finished()) {
            std::thread::sleep(Duration::from_millis(100));
            let now = sent.load(Relaxed) * 20 / plan.frames;
            if now > shown {
                shown = now;
                eprintln!("{} of {} frames, {} MiB", sent.load(Relaxed), plan.frames, resident() >> 20);
            }
        }
        for attacker in attackers {
            let (kinds, bad) = attacker.join().expect("an attacker receives only valid replies");
            kinds.into_iter().for_each(|(kind, count)| *all.0.entry(kind).or_default() += count);
            all.1 += bad;
        }
        over.store(true, Relaxed);
        client.join().expect("the good client succeeded");
    });
    (quiet, good.times, all)
}

/// Returns the response times before and during the attack for each kind of request, and the largest ratio of the 99th
/// percentiles.
fn compare(quiet: &Times, beside: &Times) -> (Value, f64) {
    let micros = |times: &[Duration], part| quantile(times, part).as_micros() as u64;
    let mut worst = 0.0f64;
    let mut shown = Map::new();
    for (kind, before) in quiet {
        let meanwhile = beside.get(kind).map_or(&[][..], |times| times);
        let ratio = micros(meanwhile, 0.99) as f64 / micros(before, 0.99).max(1) as f64;
        worst = worst.max(ratio);
        let row = json!({
            "quiet": before.len(), "quiet_p50_us": micros(before, 0.5), "quiet_p99_us": micros(before, 0.99),
            "beside": meanwhile.len(), "beside_p50_us": micros(meanwhile, 0.5),
            "beside_p99_us": micros(meanwhile, 0.99), "p99_ratio": ratio,
        });
        shown.insert((*kind).to_owned(), row);
    }
    (Value::Object(shown), worst)
}

fn counters(cluster: &Cluster) -> Map<String, Value> {
    let mut shown = Map::new();
    let status = cluster.mgr().status();
    for group in status.groups.iter().filter(|group| group.name == "network" || group.name == "mgr") {
        for (name, value) in &group.values {
            if let wire::admin::Value::Number(value) = value {
                shown.insert(name.clone(), json!(value));
            }
        }
    }
    let iod = cluster.iods[0].as_ref().expect("it runs");
    for counter in iod.counters().iter().filter(|c| c.name.starts_with("refused") || c.name.starts_with("conn")) {
        shown.insert(format!("iod.{}", counter.name), json!(counter.value));
    }
    shown
}

#[test]
fn hostile_frames_harm_nobody() {
    let frames = number("WEIR_HOSTILE_FRAMES", 20_000);
    let seed = number("WEIR_TEST_SEED", std::time::UNIX_EPOCH.elapsed().map_or(1, |t| t.as_nanos() as u64));
    let long = std::env::var_os("WEIR_HOSTILE_FRAMES").is_some();
    let as_json = std::env::var_os("WEIR_HOSTILE_JSON").is_some();
    eprintln!("WEIR_TEST_SEED={seed}, {frames} frames");
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        PANICS.fetch_add(1, Relaxed);
        usual(info);
    }));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("runtime");
    let cluster = runtime.block_on(async {
        let mut cluster = Cluster::stopped(1, "64K").await;
        let socket = cluster.dir.path().join("mgr.sock");
        cluster.config.listen = vec![format!("unix:{}", socket.display()), "127.0.0.1:0".into()];
        cluster.start_mgr().await;
        cluster
    });
    let iod = cluster.iods[0].as_ref().expect("it runs");
    let tcp = cluster.mgr().addresses()[1].socket_addr().expect("TCP");
    let plan = Plan {
        front: Place::Tcp(tcp),
        mgr: Place::Unix(cluster.dir.path().join("mgr.sock")),
        iod: Target {
            place: Place::Unix(iod.unix_path().expect("it has a Unix socket").to_owned()),
            fsid: cluster.file.fsid,
            key: cluster.file.key.of_iod(iod.iod()),
            foreign: wire::native::Key::new([7; 32]).of_iod(iod.iod()),
        },
        frames,
        rate: number("WEIR_HOSTILE_RATE", 0) / (2 * ATTACKERS),
        seed,
        measured: long,
    };
    let before = resident();
    let begun = Instant::now();
    let (quiet, beside, (kinds, bad)) = run(&plan, if long { 1000 } else { 20 }, long);
    let after = resident();
    let refused: u64 = iod.counters().iter().filter(|c| c.name.starts_with("refused.")).map(|c| c.value).sum();
    let (answers, ratio) = compare(&quiet, &beside);
    let summary = json!({
        "seed": seed, "frames": frames, "kinds": kinds, "seconds": begun.elapsed().as_secs(),
        "panics": PANICS.load(Relaxed), "stuck": STUCK.load(Relaxed), "bytes_before": before, "bytes_after": after,
        "bad_capabilities": bad, "refused": refused,
        "good_client": answers, "worst_p99_ratio": ratio,
        "counters": counters(&cluster),
    });
    if as_json {
        println!("{summary}");
    } else {
        println!("{summary:#}");
    }
    assert_eq!(PANICS.load(Relaxed), 0, "something panicked");
    assert_eq!(STUCK.load(Relaxed), 0, "requests were neither answered nor their connections closed");
    assert!(after < before + GROWTH_MAX, "{} MiB became {} MiB", before >> 20, after >> 20);
    assert!(bad > 0 && refused >= bad, "{bad} bad capabilities, {refused} refusals");
    assert!(beside.values().all(|times| times.len() > 1), "the good client made progress: {beside:?}");
    runtime.block_on(cluster.mgr.into_iter().next().expect("it runs").stop());
}
