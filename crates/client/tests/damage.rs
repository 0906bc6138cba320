//! Tests of damage to any file in the stores of a cluster: no read returns wrong bytes, and checks and scrubs report
//! lost bytes.
//!
//! Each case removes or truncates a file, replaces it by an older copy, or flips a bit. With `WEIR_TEST_SCALE=full`,
//! the tests run 10,000 cases. `WEIR_TEST_CASES` sets the number of cases of each test, and `WEIR_TEST_SEED` the seed.

use crate::restored_cluster::{Files, StoreCopies};
use crate::seeded_random::{SeededRandom, seed};
use client::{Mount, OpenFlags, Options};
use std::collections::BTreeMap;
use std::time::Duration;
use types::Cred;
use wire::admin::{CheckReply, Finding, Mended};

/// The result of a read of one file after the damage.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Read {
    /// The read returned the written bytes.
    Right,
    /// The read returned the written bytes, and additional bytes after them.
    Longer,
    /// The read failed with this error, or the name does not exist.
    Refused(String),
    /// The read returned bytes that differ from the written bytes, and no error.
    Wrong,
}

fn options() -> Options {
    let short = Duration::from_secs(1);
    Options { cred: Cred::root(), connect_timeout: short, retry_timeout: short, ..Options::default() }
}

async fn read(mount: &Mount, name: &str, content: &[u8]) -> Read {
    let read = async {
        let (node, _) = mount.lookup(&mount.root(), name.as_bytes()).await?;
        let file = mount.open(&node, OpenFlags::READ).await?;
        let read = file.read_at(0, content.len() + 1).await.map(|read| read.to_vec());
        file.close().await?;
        read
    };
    match read.await {
        Ok(bytes) if bytes == content => Read::Right,
        Ok(bytes) if bytes.starts_with(content) => Read::Longer,
        Ok(_) => Read::Wrong,
        Err(error) => Read::Refused(error.to_string()),
    }
}

/// Reads all files, and compares them with the expected contents. If an iod is down, reads only three files (long,
/// sparse and tiny), because each read takes long.
async fn read_all(mount: &Mount, files: &Files, all_up: bool) -> BTreeMap<String, Read> {
    let mut all = BTreeMap::new();
    for (name, content) in files.iter().filter(|(name, _)| all_up || ["long", "sparse", "tiny"].contains(&&name[..])) {
        all.insert(name.clone(), read(mount, name, content).await);
    }
    all
}

/// Returns whether the report of a file system check contains a problem.
fn tells(check: &CheckReply) -> bool {
    !check.findings.is_empty() || check.broken_off.is_some() || check.refused.is_some()
}

/// Damages one file of a store, then reads, checks and repairs the file system. Returns a word for the outcome, which
/// the test counts in its summary.
async fn case(copies: &StoreCopies, random: &mut SeededRandom) -> &'static str {
    let stores = copies.restore();
    let Some(damage) = stores.damage(copies, random) else { return "nothing to do" };
    let about = format!("{} with {damage:?}", copies.kind());
    let before = stores.objects();
    let running = match stores.start().await {
        Ok(running) => running,
        Err(why) => {
            assert!(!why.is_empty() && damage.is_of_the_mgr(), "{about}: {why}");
            assert!(stores.objects() == before, "{about}: refused, but objects were changed");
            return "refused";
        }
    };
    let mount = Mount::connect(&running.target, options()).await.unwrap_or_else(|e| panic!("{about}: {e}"));
    let reads = read_all(&mount, copies.files(), running.all_up()).await;
    for (name, read) in &reads {
        let wrong = [Read::Wrong, Read::Longer].contains(read);
        assert!(!wrong || damage.excuses(copies), "{about}: {name} has other bytes");
    }
    let refused: Vec<_> = reads.iter().filter(|(_, read)| matches!(read, Read::Refused(_))).collect();
    let whole = copies.mirrors() == 2 && !damage.is_of_the_mgr();
    assert!(refused.is_empty() || !whole, "{about}: there are other copies, but {refused:?}");
    let scrubbed = running.scrub().await;
    let check = running.check(false).await;
    let told = tells(&check) || scrubbed > 0;
    assert!(told || refused.is_empty(), "{about}: {refused:?} and the check says nothing");
    if damage.loses_bytes(copies) && !whole {
        assert!(told, "{about}: nothing is found");
    }
    let repaired = running.check(true).await;
    let again = read_all(&mount, copies.files(), running.all_up()).await;
    for (name, read) in &again {
        // The damage may have replaced an object by an older copy that is longer, because it is from before a truncate.
        // If the file has no mirror, the check cannot distinguish this copy from an object that grew by a write.
        let grew = |finding: &Finding| finding.code == "object-beyond" && finding.mended == Mended::Yes;
        let longer = *read == Read::Longer && !(copies.mirrors() == 1 && repaired.findings.iter().any(grew));
        let wrong = longer || *read == Read::Wrong;
        assert!(!wrong || damage.excuses(copies), "{about}: {name} has other bytes after the repair");
    }
    if whole && running.all_up() {
        // Either the check with repair above or the background repair of the mgr must have repaired the damage.
        running.until_clean(&about).await;
        assert!(again.values().all(|read| *read == Read::Right || damage.excuses(copies)), "{about}: {again:?}");
        assert!(
            repaired.findings.iter().all(|finding| finding.mended == Mended::Yes),
            "{about}: {:?}",
            repaired.findings
        );
        if !damage.excuses(copies) {
            stores.compare_objects(copies, &about);
        }
    }
    mount.disconnect().await.ok();
    running.stop().await;
    if refused.is_empty() { "read" } else { "told" }
}

async fn walk(mirrors: u32, checksums: bool, part: u64) {
    let full = std::env::var("WEIR_TEST_SCALE").is_ok_and(|scale| scale == "full");
    let given =
        std::env::var("WEIR_TEST_CASES").ok().map(|cases| cases.parse().expect("WEIR_TEST_CASES is not a number"));
    let cases = given.unwrap_or(if full { 2500 } else { 12 });
    let seed = seed() ^ part;
    let copies = StoreCopies::build(mirrors, checksums).await;
    let mut came = BTreeMap::new();
    for number in 0..cases {
        let mut random = SeededRandom(seed.wrapping_add(number << 20));
        *came.entry(case(&copies, &mut random).await).or_insert(0) += 1;
    }
    println!("{}: {came:?}", copies.kind());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damage_to_files_with_one_copy_is_reported() {
    walk(1, false, 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damage_with_one_copy_and_block_checksums_is_reported() {
    walk(1, true, 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damage_to_files_with_two_copies_is_repaired() {
    walk(2, false, 3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damage_with_two_copies_and_block_checksums_is_repaired() {
    walk(2, true, 4).await;
}
