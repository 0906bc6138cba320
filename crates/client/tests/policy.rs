//! Policy settings of the server, directory, mount, environment, file and open, and their effect on the counters of a
//! mount.

use crate::cluster::{Cluster, options};
use bytes::Bytes;
use client::options::Rule;
use client::{
    Access, CreateOptions, File, Mount, Node, OpenFlags, OpenOptions, Options, Origin, Part, Settings, XattrMode,
};
use std::time::Duration;

const KIB: usize = 1 << 10;

/// Returns client options for root, with these policy settings of the mount.
fn with(text: &str) -> Options {
    Options { policy: Settings::parse(Origin::Mount, text).unwrap(), ..options() }
}

async fn dir(mount: &Mount, name: &str, policy: &str) -> Node {
    let (dir, _) = mount.mkdir(&mount.root(), name.as_bytes(), 0o755).await.unwrap();
    set(mount, &dir, policy).await;
    dir
}

async fn set(mount: &Mount, node: &Node, policy: &str) {
    for element in policy.split(',').filter(|element| !element.is_empty()) {
        let (name, value) = element.split_once('=').unwrap();
        let name = format!("weir.{name}");
        mount.setxattr(node, name.as_bytes(), value.as_bytes(), XattrMode::Either).await.unwrap();
    }
}

async fn create(mount: &Mount, dir: &Node, name: &str) -> File {
    mount.create(dir, name.as_bytes(), CreateOptions::default()).await.unwrap()
}

/// Writes byte ranges of these lengths, each followed by a gap of the same length, and closes the file.
async fn fill(file: File, runs: &[usize]) {
    let mut at = 0;
    for run in runs {
        file.write_at(at, Bytes::from(vec![7; *run])).await.unwrap();
        // Leave a gap between the ranges, so that the client does not join them to one request.
        at += 2 * *run as u64;
    }
    file.close().await.unwrap();
}

/// The counters of a mount, or the increase of these counters during some operations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Done {
    compounds: u64,
    layouts: u64,
    /// The count and the bytes of write requests to the mgr (`mgr`) and to iods (`iods`).
    mgr: (u64, u64),
    iods: (u64, u64),
    /// The number of bytes that the mount read from the mgr, and from iods.
    read: (u64, u64),
}

fn counted(mount: &Mount) -> Done {
    let counters = mount.counters();
    Done {
        compounds: counters.rpc("COMPOUND"),
        layouts: counters.operation("LAYOUTGET"),
        mgr: (counters.operation("WRITE"), counters.written_via_mgr),
        iods: (counters.rpc("WRITE"), counters.written_direct),
        read: (counters.read_via_mgr, counters.read_direct),
    }
}

async fn during(mount: &Mount, work: impl Future<Output = ()>) -> Done {
    let before = counted(mount);
    work.await;
    let after = counted(mount);
    let pair = |a: (u64, u64), b: (u64, u64)| (a.0 - b.0, a.1 - b.1);
    Done {
        compounds: after.compounds - before.compounds,
        layouts: after.layouts - before.layouts,
        mgr: pair(after.mgr, before.mgr),
        iods: pair(after.iods, before.iods),
        read: pair(after.read, before.read),
    }
}

async fn opened(mount: &Mount, node: &Node, dir: Option<&Node>, policy: &str) -> File {
    let policy = Settings::parse(Origin::Open, policy).unwrap();
    mount
        .open_with(node, OpenOptions { flags: OpenFlags::READ_WRITE, dir, policy, alone: false, named: false })
        .await
        .unwrap()
}

/// Sets one policy for each directory, and checks how the policy changes the counters of a mount that writes a file
/// there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_policy_setting_of_a_directory_takes_effect() {
    let cluster = Cluster::start(2).await;
    let mount = cluster.mount(options()).await;
    let small = vec![KIB; 16];
    // The columns: the policy; the lengths of the written ranges, which have gaps between them; the count and bytes of
    // requests to the mgr; the count and bytes of requests to the iods; the count of LAYOUTGETs.
    type Sent = (u64, u64);
    let table: Vec<(&str, Vec<usize>, Sent, Sent, u64)> = vec![
        ("", vec![20 * KIB, 40 * KIB], (0, 0), (1, 60 * KIB as u64), 1),
        ("write_threshold=32K", vec![20 * KIB, 40 * KIB], (1, 20 * KIB as u64), (1, 40 * KIB as u64), 1),
        ("write_threshold=max", vec![20 * KIB, 40 * KIB], (2, 60 * KIB as u64), (0, 0), 0),
        // The two written ranges together have more bytes than one request can contain.
        ("write_threshold=max", vec![800 * KIB, 800 * KIB], (2, 1600 * KIB as u64), (0, 0), 0),
        ("write_threshold=32K,layout_when=open", vec![KIB], (1, KIB as u64), (0, 0), 1),
        ("write_threshold=32K,layout_when=first-io", vec![KIB], (1, KIB as u64), (0, 0), 0),
        ("layout_when=first-io", vec![KIB], (0, 0), (1, KIB as u64), 1),
        ("layout_when=1M", vec![100 * KIB], (1, 100 * KIB as u64), (0, 0), 0),
        ("layout_when=50K", vec![100 * KIB], (0, 0), (1, 100 * KIB as u64), 1),
        ("access=unbuffered", small.clone(), (0, 0), (16, 16 * KIB as u64), 1),
        ("access=direct", small.clone(), (0, 0), (1, 16 * KIB as u64), 1),
        ("access=page", small.clone(), (0, 0), (1, 16 * KIB as u64), 1),
        ("write_threshold=max,access=unbuffered", small.clone(), (16, 16 * KIB as u64), (0, 0), 0),
        ("gather_size=4K", small.clone(), (0, 0), (4, 16 * KIB as u64), 1),
        ("gather_size=0", small.clone(), (0, 0), (16, 16 * KIB as u64), 1),
        ("gather_size=full", small.clone(), (0, 0), (1, 16 * KIB as u64), 1),
    ];
    for (n, (policy, runs, mgr, iods, layouts)) in table.into_iter().enumerate() {
        let dir = dir(&mount, &format!("d{n}"), policy).await;
        // When the client opens the first file of a directory, it does not know the policy of the directory yet. The
        // reply to the OPEN of this file contains the policy.
        create(&mount, &dir, "first").await.close().await.unwrap();
        let done = during(&mount, async { fill(create(&mount, &dir, "f").await, &runs).await }).await;
        assert_eq!((done.mgr, done.iods, done.layouts), (mgr, iods, layouts), "{policy}: {done:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_below_the_read_threshold_take_the_mgr_path() {
    let cluster = Cluster::start(2).await;
    let mount = cluster.mount(options()).await;
    let dir = dir(&mount, "d", "read_threshold=8K").await;
    fill(create(&mount, &dir, "f").await, &[100 * KIB]).await;
    let (node, _) = mount.lookup(&dir, b"f").await.unwrap();
    let file = opened(&mount, &node, Some(&dir), "").await;
    let done = during(&mount, async {
        file.read_at(0, 8 * KIB - 1).await.unwrap();
        file.read_at(0, 8 * KIB).await.unwrap();
    });
    assert_eq!(done.await.read, (8 * KIB as u64 - 1, 8 * KIB as u64));
    file.close().await.unwrap();
}

/// The client sends gathered bytes after `gather_delay`, although no program syncs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gathered_bytes_are_sent_after_gather_delay() {
    let cluster = Cluster::start(1).await;
    let mount = cluster.mount(with("write_threshold=max,gather_delay=5ms")).await;
    let file = create(&mount, &mount.root(), "f").await;
    for round in 1..=3u64 {
        file.write_at(round * 100, Bytes::from_static(b"abc")).await.unwrap();
        while mount.counters().written_via_mgr < 3 * round {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    file.close().await.unwrap();
}

/// On the direct path, the flush timer sends bytes although no program syncs, so other clients can read these bytes.
/// Later the flush timer makes the bytes durable.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_sent_by_the_flush_timer_become_durable_later() {
    let cluster = Cluster::start(2).await;
    let (mount, other) =
        (cluster.mount(with("write_threshold=0,gather_delay=5ms")).await, cluster.mount(options()).await);
    let file = create(&mount, &mount.root(), "f").await;
    let (node, _) = other.lookup(&other.root(), b"f").await.unwrap();
    let reader = opened(&other, &node, None, "").await;
    for round in 1..=2u64 {
        file.write_at(round * 100, Bytes::from_static(b"abc")).await.unwrap();
        while other.getattr(&node).await.unwrap().size < round * 100 + 3 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(reader.read_at(round * 100, 3).await.unwrap().to_vec(), b"abc");
        let commits = || mount.counters().rpc("COMMIT");
        while commits() < round || mount.counters().operation("LAYOUTCOMMIT") < round {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        file.fsync().await.unwrap();
        assert_eq!(
            (commits(), mount.counters().operation("LAYOUTCOMMIT")),
            (round, round),
            "durable bytes were committed again"
        );
    }
    reader.close().await.unwrap();
    file.close().await.unwrap();
}

/// When a client sets the policy of a directory, the policy applies to later opens of files in this directory on all
/// mounts. These opens need no additional round trips.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_policy_applies_to_all_clients_without_round_trips() {
    let cluster = Cluster::start(1).await;
    let (one, other) = (cluster.mount(options()).await, cluster.mount(options()).await);
    let here = dir(&one, "d", "").await;
    let (there, _) = other.lookup(&other.root(), b"d").await.unwrap();
    let names: Vec<String> = (0..20).map(|n| format!("f{n}")).collect();
    for name in &names {
        create(&one, &here, name).await.close().await.unwrap();
    }
    let mut nodes = Vec::new();
    for name in &names {
        nodes.push(other.lookup(&there, name.as_bytes()).await.unwrap().0);
    }
    for (policy, threshold) in [("", 0), ("write_threshold=32K,access=unbuffered", 32 * KIB as u64)] {
        set(&one, &here, policy).await;
        let done = during(&other, async {
            for node in &nodes {
                let file = opened(&other, node, Some(&there), "").await;
                assert_eq!(file.policy().write_threshold, Rule::Fixed(threshold), "{policy}");
                file.close().await.unwrap();
            }
        });
        // The client sends one COMPOUND to open each file, and one COMPOUND to close each file.
        assert_eq!(done.await.compounds, 40, "{policy}");
    }
    let done = during(&other, async { fill(create(&other, &there, "new").await, &[KIB]).await }).await;
    // The client sends four COMPOUNDs: to create the file, to write, to commit, and to close.
    assert_eq!((done.compounds, done.mgr), (4, (1, KIB as u64)));
    // An open whose options contain no directory gets no directory policy. An open whose options contain a removed
    // directory succeeds.
    let file = opened(&other, &nodes[0], None, "").await;
    assert_eq!(file.policy().write_threshold, Rule::Fixed(0));
    file.close().await.unwrap();
    one.rename(&here, b"f0", &one.root(), b"f0").await.unwrap();
    for name in names[1..].iter().map(String::as_str).chain(["new"]) {
        one.remove(&here, name.as_bytes()).await.unwrap();
    }
    one.remove(&one.root(), b"d").await.unwrap();
    opened(&other, &nodes[0], Some(&there), "").await.close().await.unwrap();
}

/// If several levels (such as server, directory and mount) have the same policy setting, the last level in the order of
/// precedence applies. For each setting, the client reports the level that the setting comes from.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn policies_of_later_places_override_earlier_ones() {
    let mut cluster = Cluster::start(1).await;
    cluster.policy =
        Some("write_threshold=1K,read_threshold=1K,gather_size=1K,gather_delay=1s,layout_when=open".into());
    cluster.restart_mgr().await;
    let environment = Settings::parse(Origin::Environment, "write_threshold=4K,read_threshold=4K").unwrap();
    let policy = Settings::parse(Origin::Mount, "write_threshold=3K,read_threshold=3K,gather_size=3K").unwrap();
    let mount = cluster.mount(Options { environment, policy, ..options() }).await;
    assert_eq!(mount.policy().origin(Part::LayoutWhen), Origin::Server);
    let dir = dir(&mount, "d", "write_threshold=2K,read_threshold=2K,gather_size=2K,gather_delay=2s").await;
    create(&mount, &dir, "f").await.close().await.unwrap();
    let (node, _) = mount.lookup(&dir, b"f").await.unwrap();
    let file = opened(&mount, &node, Some(&dir), "write_threshold=6K").await;
    let of = |file: &File, part| {
        let effective = file.effective_policy();
        (effective.policy.get(part), effective.origin(part))
    };
    let text = |text: &str| text.to_owned();
    for (part, value, origin) in [
        (Part::WriteThreshold, "6K", Origin::Open),
        (Part::ReadThreshold, "4K", Origin::Environment),
        (Part::GatherSize, "3K", Origin::Mount),
        (Part::GatherDelay, "2s", Origin::Directory),
        (Part::LayoutWhen, "open", Origin::Server),
        (Part::Access, "direct", Origin::Driver),
    ] {
        assert_eq!(of(&file, part), (text(value), origin), "{}", part.name());
    }
    // New policy settings of the file and of the mount apply at once to a file that is open. New settings of the
    // directory apply only to later opens.
    set(&mount, &node, "write_threshold=5K,read_threshold=5K").await;
    set(&mount, &dir, "gather_delay=7s").await;
    mount.set_policy(b"gather_size", Some(b"8K")).unwrap();
    assert_eq!(of(&file, Part::WriteThreshold), (text("6K"), Origin::Open));
    assert_eq!(of(&file, Part::ReadThreshold), (text("5K"), Origin::File));
    assert_eq!(of(&file, Part::GatherSize), (text("8K"), Origin::Mount));
    assert_eq!(of(&file, Part::GatherDelay), (text("2s"), Origin::Directory));
    mount.set_policy(b"gather_size", None).unwrap();
    mount.removexattr(&node, b"weir.read_threshold").await.unwrap();
    assert_eq!(of(&file, Part::GatherSize), (text("2K"), Origin::Directory));
    assert_eq!(of(&file, Part::ReadThreshold), (text("4K"), Origin::Environment));
    file.close().await.unwrap();
    let (_, asked) = mount.policy_of(&node, Some(&dir)).await.unwrap();
    assert_eq!(
        (asked.policy.get(Part::WriteThreshold), asked.origin(Part::WriteThreshold)),
        (text("5K"), Origin::File)
    );
    assert_eq!(asked.policy.get(Part::GatherDelay), "7s");
    for (name, value) in [("write_threshold", "much"), ("stripe_unit", "64K"), ("colour", "1")] {
        assert!(mount.set_policy(name.as_bytes(), Some(value.as_bytes())).is_err(), "{name}");
    }
}

/// A new policy of the mount applies from the next write on, and the client still writes all bytes of earlier writes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_mount_policy_applies_to_the_next_write() {
    let cluster = Cluster::start(2).await;
    let mount = cluster.mount(options()).await;
    let file = create(&mount, &mount.root(), "f").await;
    let mut model = vec![0; 64 * KIB];
    let ways = ["0", "max", "2K", "auto", "0", "max"];
    for (round, (threshold, access)) in ways.iter().zip(["direct", "unbuffered"].iter().cycle()).enumerate() {
        mount.set_policy(b"write_threshold", Some(threshold.as_bytes())).unwrap();
        mount.set_policy(b"access", Some(access.as_bytes())).unwrap();
        let (at, byte) = (round * 5 * KIB, round as u8 + 1);
        model[at..at + 20 * KIB].fill(byte);
        let done = during(&mount, async {
            file.write_at(at as u64, Bytes::from(vec![byte; 20 * KIB])).await.unwrap();
            file.push().await.unwrap();
        });
        let done = done.await;
        match *threshold {
            "0" => assert_eq!((done.mgr.1, done.iods.1), (0, 20 * KIB as u64), "{done:?}"),
            "max" => assert_eq!((done.mgr.1, done.iods.1), (20 * KIB as u64, 0), "{done:?}"),
            _ => {}
        }
    }
    let end = (ways.len() - 1) * 5 * KIB + 20 * KIB;
    assert_eq!(file.read_at(0, model.len()).await.unwrap().to_vec(), model[..end]);
    file.close().await.unwrap();
    let file = mount.open(&mount.lookup(&mount.root(), b"f").await.unwrap().0, OpenFlags::READ).await.unwrap();
    assert_eq!(file.read_at(0, model.len()).await.unwrap().to_vec(), model[..end]);
    assert_eq!(file.policy().access, Access::Unbuffered);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_the_first_short_write_after_a_stream_takes_the_direct_path() {
    let cluster = Cluster::start(2).await;
    let mount = cluster.mount(options()).await;
    mount.set_policy(b"write_threshold", Some(b"8K")).unwrap();
    let file = create(&mount, &mount.root(), "f").await;
    let mut at = 0;
    // A short write that directly follows a sequence of long writes still takes the direct path. Further short writes
    // take the mgr path, until the next long write.
    for (len, straight) in [(20, true), (1, true), (1, false), (1, false), (30, true), (2, true), (2, false)] {
        let done = during(&mount, async {
            file.write_at(at, Bytes::from(vec![len as u8; len * KIB])).await.unwrap();
            file.push().await.unwrap();
        });
        let done = done.await;
        let bytes = (len * KIB) as u64;
        assert_eq!((done.mgr.1, done.iods.1), if straight { (0, bytes) } else { (bytes, 0) }, "{len} KiB at {at}");
        at += bytes;
    }
    file.close().await.unwrap();
}
