//! Tests of rare replies of the mgr: NFS4ERR_DELAY, NFS4ERR_STALE for a file that is removed between two operations,
//! and no cached reply to a repeated request.

use crate::memory_mgr::{MemoryMgr, options};
use bytes::Bytes;
use client::{CreateOptions, Mount, OpenFlags};
use std::sync::{Arc, Mutex};
use types::{SetAttrs, Status};
use wire::nfs4::*;

async fn mounted() -> (MemoryMgr, Mount) {
    let mgr = MemoryMgr::start().await;
    let mount = mgr.mount(options()).await;
    (mgr, mount)
}

/// Makes the first GETATTR after a LOOKUP, CREATE or LINK fail with NFS4ERR_STALE, as if another client had removed the
/// file between the two operations.
fn remove_in_between(mgr: &MemoryMgr) {
    let mut done = false;
    mgr.meddle(move |_, answer| {
        let results = &mut answer.resarray;
        let is_found = |result: &nfs_resop4| {
            matches!(result, nfs_resop4::OP_LOOKUP(_) | nfs_resop4::OP_CREATE(_) | nfs_resop4::OP_LINK(_))
        };
        let found = results.iter().position(is_found);
        let at = results.iter().position(|result| matches!(result, nfs_resop4::OP_GETATTR(_)));
        if let (false, Some(found), Some(at)) = (done, found, at)
            && found < at
        {
            done = true;
            results.truncate(at);
            results.push(nfs_resop4::OP_GETATTR(GETATTR4res::Default(NFS4ERR_STALE)));
            answer.status = NFS4ERR_STALE;
        }
    });
}

#[tokio::test]
async fn a_lookup_is_retried_when_the_file_is_removed_meanwhile() {
    let (mgr, mount) = mounted().await;
    let root = mount.root();
    let (dir, _) = mount.mkdir(&root, b"d", 0o755).await.unwrap();
    remove_in_between(&mgr);
    assert_eq!(mount.lookup(&root, b"d").await.unwrap().0, dir);
    remove_in_between(&mgr);
    assert_eq!(mount.resolve(&[b"d".to_vec()], true).await.unwrap().0, dir);
    // A lookup in a removed directory fails with ESTALE.
    mount.remove(&root, b"d").await.unwrap();
    assert!(mount.lookup(&dir, b"x").await.unwrap_err().is(Status::Stale));
}

#[tokio::test]
async fn mkdir_and_link_are_in_doubt_when_the_new_name_is_removed_at_once() {
    let (mgr, mount) = mounted().await;
    let root = mount.root();
    remove_in_between(&mgr);
    assert!(mount.mkdir(&root, b"d", 0o755).await.unwrap_err().is_in_doubt());
    let file = mount.create(&root, b"f", CreateOptions::default()).await.unwrap();
    remove_in_between(&mgr);
    assert!(mount.link(&file.node(), &root, b"g").await.unwrap_err().is_in_doubt());
    file.close().await.unwrap();
}

#[tokio::test]
async fn an_executed_request_without_cached_reply_is_in_doubt_and_not_repeated() {
    let (mgr, mount) = mounted().await;
    let root = mount.root();
    mount.mkdir(&root, b"d", 0o755).await.unwrap();
    let removals = Arc::new(Mutex::new(0));
    let counted = removals.clone();
    mgr.meddle(move |request, answer| {
        if request.argarray.iter().any(|op| matches!(op, nfs_argop4::OP_REMOVE(_))) {
            *counted.lock().unwrap() += 1;
            answer.resarray.truncate(1);
            answer.status = NFS4ERR_RETRY_UNCACHED_REP;
        }
    });
    let error = mount.remove(&root, b"d").await.unwrap_err();
    assert!(error.is_in_doubt(), "{error}");
    assert_eq!(*removals.lock().unwrap(), 1);
    assert!(mount.lookup(&root, b"d").await.unwrap_err().is(Status::NoEnt));
}

#[tokio::test]
async fn a_reclaim_answered_with_delay_is_retried() {
    let (mgr, mount) = mounted().await;
    // Use no delegation, because the client would reclaim the delegation with a separate request, which this test does
    // not expect.
    mount.set_policy(b"sharing", Some(b"close-to-open")).unwrap();
    let root = mount.root();
    let file = mount.create(&root, b"f", CreateOptions::default()).await.unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let noted = seen.clone();
    mgr.meddle(move |request, answer| {
        let mut seen = noted.lock().unwrap();
        for op in &request.argarray {
            match op {
                nfs_argop4::OP_OPEN(args) if matches!(args.claim, open_claim4::CLAIM_PREVIOUS(_)) => {
                    seen.push("reclaim");
                    if seen.len() < 3 {
                        answer.resarray.pop();
                        answer.resarray.push(nfs_resop4::OP_OPEN(OPEN4res::Default(NFS4ERR_DELAY)));
                        answer.status = NFS4ERR_DELAY;
                    }
                }
                nfs_argop4::OP_RECLAIM_COMPLETE(_) => seen.push("complete"),
                _ => {}
            }
        }
    });
    mgr.expire().await;
    mount.getattr(&root).await.unwrap();
    assert_eq!(*seen.lock().unwrap(), ["reclaim", "reclaim", "reclaim", "complete"]);
    file.close().await.unwrap();
}

/// Makes the mgr reply once with NFS4ERR_DELAY to one operation of a COMPOUND. `nth` is the index of this operation
/// among the operations SETATTR, CLOSE, RENAME and GETATTR. Returns a list that records, for each COMPOUND, which of
/// these operations the COMPOUND contained.
fn delay_closing_at(mgr: &MemoryMgr, nth: usize) -> Arc<Mutex<Vec<Vec<&'static str>>>> {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let noted = asked.clone();
    let mut done = false;
    mgr.hinder(move |request| {
        let name = |op: &nfs_argop4| match op {
            nfs_argop4::OP_SETATTR(_) => Some("SETATTR"),
            nfs_argop4::OP_CLOSE(_) => Some("CLOSE"),
            nfs_argop4::OP_RENAME(_) => Some("RENAME"),
            nfs_argop4::OP_GETATTR(_) => Some("GETATTR"),
            _ => None,
        };
        let ops = request.argarray.iter().enumerate();
        let named: Vec<_> = ops.filter_map(|(at, op)| Some((at, name(op)?))).collect();
        noted.lock().unwrap().push(named.iter().map(|(_, name)| *name).collect());
        let at = named.get(nth).filter(|_| !done).map(|(at, _)| *at)?;
        done = true;
        Some(at)
    });
    asked
}

#[tokio::test]
async fn closing_resumes_at_the_operation_answered_with_delay() {
    const STEPS: [&str; 4] = ["SETATTR", "CLOSE", "RENAME", "GETATTR"];
    for nth in 0..=STEPS.len() {
        let (mgr, mount) = mounted().await;
        let root = mount.root();
        let file = mount.create(&root, b"new", CreateOptions::default()).await.unwrap();
        file.write_at(0, Bytes::from_static(b"bytes")).await.unwrap();
        file.fsync().await.unwrap();
        let asked = delay_closing_at(&mgr, nth);
        let changes = SetAttrs { mode: Some(0o600), ..SetAttrs::default() };
        let attrs = file.finish(changes, Some((&root, b"final"))).await.unwrap_or_else(|e| panic!("step {nth}: {e}"));
        assert_eq!((attrs.mode, attrs.size), (0o600, 5), "step {nth}");
        // The second request contains exactly the delayed operation and the operations after it.
        let expected = if nth < STEPS.len() { vec![&STEPS[..], &STEPS[nth..]] } else { vec![&STEPS[..]] };
        assert_eq!(*asked.lock().unwrap(), expected, "step {nth}");
        assert_eq!(mount.lookup(&root, b"final").await.unwrap().1.mode, 0o600);
        assert!(mount.lookup(&root, b"new").await.unwrap_err().is(Status::NoEnt));
        assert_eq!(mgr.counts().opens, 0, "step {nth}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_delegation_is_returned_once() {
    let (mgr, one) = mounted().await;
    let other = mgr.mount(options()).await;
    let (root, alone) = (one.root(), CreateOptions { alone: true, ..CreateOptions::default() });
    let returned = Arc::new(Mutex::new(Vec::new()));
    let noted = returned.clone();
    mgr.meddle(move |request, _| {
        let closes = request.argarray.iter().any(|op| matches!(op, nfs_argop4::OP_CLOSE(_)));
        for op in &request.argarray {
            if let nfs_argop4::OP_DELEGRETURN(args) = op {
                noted.lock().unwrap().push(args.deleg_stateid.other);
                if closes {
                    // The client's task that has returned the previous delegation checks whether it must return another
                    // delegation of the file. Give this task time for the check.
                    std::thread::sleep(4 * nfs::client::recovery::pause(0));
                }
            }
        }
    });
    for round in 1..=3 {
        let mine = one.create(&root, b"f", alone).await.unwrap();
        assert!(mine.is_alone());
        let theirs = other.open(&mine.node(), OpenFlags::READ).await.unwrap();
        assert!(!mine.is_alone());
        theirs.close().await.unwrap();
        // The mgr grants the other client's open as soon as it has received the DELEGRETURN. The reply to the
        // DELEGRETURN may still be in flight. This client requests a new delegation only after this reply.
        while !mine.ask_alone().await.unwrap() {
            tokio::task::yield_now().await;
        }
        mine.close().await.unwrap();
        let mut all = returned.lock().unwrap().clone();
        assert_eq!(all.len(), 2 * round, "one return for the recall, and one for the close");
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 2 * round);
    }
}
