//! Copies of trees while the test kills daemons or cuts connections: the copies must continue and lose no data.

use crate::lab::{Daemon, Lab};
use crate::tree;
use serde_json::json;
use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Instant;

const IODS: usize = 3;
/// Approximate number of bytes that the copy of one name sends over the network, without the content of its file.
const NAME_COST: u64 = 2 << 10;

/// The kind of fault that the test injects during a copy of a tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Drill {
    /// The test kills and restarts one iod.
    Iod,
    /// The test kills and restarts the mgr.
    Mgr,
    /// The test kills one iod and the mgr at the same time, and restarts both daemons.
    Both,
    /// The proxies break connections after random numbers of bytes. Proxies are between the client and every daemon,
    /// and between the mgr and the iods.
    Cuts,
}

const DRILLS: [Drill; 4] = [Drill::Iod, Drill::Mgr, Drill::Both, Drill::Cuts];

/// A deterministic pseudorandom number generator (SplitMix of Steele, Lea and Flood).
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % end
    }
}

/// Returns the approximate minimum number of bytes that a copy of a tree moves over the network.
fn traffic(top: &Path) -> u64 {
    let mut seen = HashSet::new();
    let cost = |path: &PathBuf| {
        let meta = path.symlink_metadata().unwrap();
        let stored = (meta.blocks() * 512).min(meta.size());
        NAME_COST + if meta.is_file() && seen.insert((meta.dev(), meta.ino())) { stored } else { 0 }
    };
    tree::paths(top).iter().map(cost).sum()
}

/// A copy in progress, and a log of the faults that the test has injected.
struct Copy<'a> {
    lab: &'a mut Lab,
    child: Child,
    events: Vec<String>,
}

fn begin<'a>(lab: &'a mut Lab, from: &OsStr, to: &OsStr) -> Copy<'a> {
    let args = [OsStr::new("cp"), OsStr::new("-r"), OsStr::new("--json"), from, to];
    let mut command = lab.weir(args);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary starts");
    Copy { lab, child, events: Vec::new() }
}

impl Copy<'_> {
    /// Injects faults of the kind `drill` during the copy, each after a random number of transferred bytes.
    fn inject_faults(&mut self, drill: Drill, expected: u64, dice: &mut Dice) {
        let begun = self.lab.meter.passed();
        if drill == Drill::Cuts {
            for daemon in self.lab.daemons() {
                daemon.proxy.cut_at_random(dice.below(u64::MAX));
            }
            return;
        }
        let mut points: Vec<u64> = (0..3).map(|_| expected / 20 + dice.below(expected * 3 / 4)).collect();
        points.sort_unstable();
        for point in points {
            let child = &mut self.child;
            if !self.lab.meter.wait(begun + point, || child.try_wait().expect("a child").is_some()) {
                return;
            }
            let iod = dice.below(IODS as u64) as usize;
            let (mgr, iods) = (&mut self.lab.mgr, &mut self.lab.iods);
            let victims: Vec<&mut Daemon> = match drill {
                Drill::Iod => vec![&mut iods[iod]],
                Drill::Mgr => vec![mgr],
                Drill::Both | Drill::Cuts => vec![mgr, &mut iods[iod]],
            };
            self.events.push(kill(victims, point, dice, || child.try_wait().expect("a child").is_some()));
        }
    }

    /// Waits until the copy ends, which must succeed. Returns the log of the injected faults.
    fn end(mut self, started: Instant) -> Vec<String> {
        let cuts: u64 = self.lab.daemons().map(|daemon| daemon.proxy.calm()).sum();
        if cuts > 0 {
            self.events.push(format!("{cuts} connections cut"));
        }
        let events = std::mem::take(&mut self.events);
        let output = self.child.wait_with_output().expect("it ends");
        let (said, told) = (String::from_utf8_lossy(&output.stderr), String::from_utf8_lossy(&output.stdout));
        assert!(output.status.success(), "{events:?}: {}: {said}{told}", output.status);
        let mut events = events;
        events.push(format!("{:.1} s", started.elapsed().as_secs_f64()));
        events
    }
}

/// Kills all daemons in `victims` at the same time, waits until their proxies have refused some connections, and
/// restarts these daemons.
fn kill(mut victims: Vec<&mut Daemon>, point: u64, dice: &mut Dice, mut over: impl FnMut() -> bool) -> String {
    victims.iter_mut().for_each(|victim| victim.kill());
    let mut names = Vec::new();
    for victim in &mut victims {
        victim.proxy.wait_for_refusals(dice.below(5), &mut over);
        victim.restart();
        names.push(victim.name().to_owned());
    }
    format!("{} killed at {} KiB", names.join(" and "), point >> 10)
}

/// Copies the tree `source` into Weir, and from Weir into `back`, with faults during each copy. The tree in `back` must
/// equal `source`.
fn round(lab: &mut Lab, drill: Drill, seed: u64, source: &Path, back: &Path) -> [Vec<String>; 2] {
    let mut dice = Dice(seed);
    let expected = traffic(source);
    let inside = format!("weir:/copy-{seed}");
    let ways = [(source.as_os_str(), OsStr::new(&inside)), (OsStr::new(&inside), back.as_os_str())];
    let events = ways.map(|(from, to)| {
        let started = Instant::now();
        let mut copy = begin(lab, from, to);
        copy.inject_faults(drill, expected, &mut dice);
        if drill == Drill::Cuts {
            // From now on, let the proxies cut connections, until the copy ends.
            copy.lab.meter.wait(u64::MAX, || copy.child.try_wait().expect("a child").is_some());
        }
        copy.end(started)
    });
    tree::assert_same(source, back);
    assert!(lab.json(["find", "/", "-name", ".weir-cp-*", "--json"]).is_empty(), "temporary names are left");
    lab.fsck();
    events
}

/// Runs the test with one kind of fault, with a small tree in a new cluster.
fn small(drill: Drill) {
    let home = tempfile::tempdir().unwrap();
    let (source, back) = (home.path().join("source"), home.path().join("back"));
    tree::make(&source);
    let mut lab = Lab::start(home.path(), IODS);
    let events = round(&mut lab, drill, drill as u64, &source, &back);
    eprintln!("{drill:?}: {events:?}");
}

#[test]
fn a_copy_goes_on_when_an_iod_is_killed() {
    small(Drill::Iod);
}

#[test]
fn a_copy_goes_on_when_the_mgr_is_killed() {
    small(Drill::Mgr);
}

#[test]
fn a_copy_goes_on_when_an_iod_and_the_mgr_are_killed() {
    small(Drill::Both);
}

#[test]
fn a_copy_goes_on_when_connections_are_cut() {
    small(Drill::Cuts);
}

/// Returns a setting from the environment, where `cargo xtask drills` puts it; `usual` if it is not set.
fn setting(name: &str, usual: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| usual.to_owned())
}

#[test]
#[ignore = "takes minutes; cargo xtask drills runs it"]
fn rounds_on_a_real_tree() {
    let home = tempfile::tempdir().unwrap();
    let source = PathBuf::from(setting("WEIR_DRILLS_TREE", "/usr/share/doc"));
    let number = |name, usual| setting(name, usual).parse::<u64>().unwrap_or_else(|e| panic!("{name}: {e}"));
    let (rounds, seed) = (number("WEIR_DRILLS_ROUNDS", "10"), number("WEIR_DRILLS_SEED", "1"));
    let json = std::env::var_os("WEIR_DRILLS_JSON").is_some();
    let names = tree::paths(&source).len();
    let tell = |value: &serde_json::Value, text: String| match json {
        true => println!("{value}"),
        false => println!("{text}"),
    };
    let about = format!("{rounds} rounds from seed {seed} on {} ({names} names)", source.display());
    tell(&json!({"rounds": rounds, "seed": seed, "tree": source, "names": names}), about);
    let mut lab = Lab::start(home.path(), IODS);
    for round_seed in seed..seed + rounds {
        for drill in DRILLS {
            let back = home.path().join("back");
            let [inwards, outwards] = round(&mut lab, drill, round_seed, &source, &back);
            let text = format!(
                "{round_seed} {drill:?}: in: {}; out: {}; identical, sound",
                inwards.join(", "),
                outwards.join(", ")
            );
            let drill = format!("{drill:?}").to_lowercase();
            let value = json!({"seed": round_seed, "drill": drill, "in": inwards, "out": outwards, "identical": true, "sound": true});
            tell(&value, text);
            std::fs::remove_dir_all(&back).unwrap();
            lab.run(["rm", "-r", &format!("/copy-{round_seed}")]);
        }
    }
}
