//! What a client does when the server forgets, refuses or warns: decisions without their execution.

use crate::client::session::Identity;
use std::time::Duration;
use wire::nfs4::*;

/// What a status flag of SEQUENCE asks the client to do (RFC 8881 §18.46.3), in the order in which to do it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Task {
    /// Destroy the session and make another one, when its requests are done.
    ReplaceSession,
    /// Bind a connection to the backchannel (BIND_CONN_TO_SESSION).
    BindBackchannel,
    /// All state is lost: begin anew with EXCHANGE_ID.
    StartOver,
    /// The server restarted: reclaim, then RECLAIM_COMPLETE.
    Reclaim,
    /// Some state is lost: TEST_STATEID what is held, FREE_STATEID what is gone.
    TestStateids,
    /// Layouts were taken away: drop all of them.
    DropLayouts,
    /// Device addresses have changed: ask for those in use again.
    RefreshDevices,
}

/// What the flags of a SEQUENCE reply ask for; nothing in the usual case.
pub fn tasks(flags: u32) -> Vec<Task> {
    let table = [
        (SEQ4_STATUS_BACKCHANNEL_FAULT, Task::ReplaceSession),
        (SEQ4_STATUS_CB_PATH_DOWN | SEQ4_STATUS_CB_PATH_DOWN_SESSION, Task::BindBackchannel),
        (SEQ4_STATUS_EXPIRED_ALL_STATE_REVOKED, Task::StartOver),
        (SEQ4_STATUS_RESTART_RECLAIM_NEEDED, Task::Reclaim),
        (SEQ4_STATUS_EXPIRED_SOME_STATE_REVOKED | SEQ4_STATUS_ADMIN_STATE_REVOKED, Task::TestStateids),
        (SEQ4_STATUS_RECALLABLE_STATE_REVOKED, Task::DropLayouts),
        (SEQ4_STATUS_DEVID_CHANGED | SEQ4_STATUS_DEVID_DELETED, Task::RefreshDevices),
    ];
    table.into_iter().filter(|(bits, _)| flags & bits != 0).map(|(_, task)| task).collect()
}

/// What is left of our state at a server that was asked again who we are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Continuity {
    /// It still knows us: only the session is gone; opens and layouts are as they were.
    Kept,
    /// It is the same server (or its successor) but our state is gone: reclaim it within the grace period.
    Lost,
    /// It is another server: handles and stateids mean nothing there.
    Elsewhere,
}

/// Compares the answers to EXCHANGE_ID before and after a session was lost (§2.10.4, §8.4.2).
pub fn continuity(before: &Identity, after: &Identity) -> Continuity {
    if before.scope != after.scope {
        Continuity::Elsewhere
    } else if after.confirmed && after.clientid == before.clientid {
        Continuity::Kept
    } else {
        Continuity::Lost
    }
}

/// What to do after EXCHANGE_ID or CREATE_SESSION failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// The same again, after a pause.
    Wait,
    /// EXCHANGE_ID again.
    StartOver,
    /// Nothing helps.
    GiveUp,
}

/// After EXCHANGE_ID failed. CLID_INUSE means that another principal owns our name: only its lease can end that.
pub fn exchange_id_failed(status: nfsstat4) -> Next {
    match status {
        NFS4ERR_DELAY | NFS4ERR_SERVERFAULT => Next::Wait,
        _ => Next::GiveUp,
    }
}

/// After CREATE_SESSION failed. The client id, or our idea of its sequence number, may be out of date.
pub fn create_session_failed(status: nfsstat4) -> Next {
    match status {
        NFS4ERR_DELAY => Next::Wait,
        NFS4ERR_STALE_CLIENTID | NFS4ERR_SEQ_MISORDERED => Next::StartOver,
        _ => Next::GiveUp,
    }
}

/// What to do with a request that was in flight when its session was lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Redo {
    /// Send it in the new session.
    Send,
    /// It may have been executed, and doing it twice is not the same as once: tell the caller that nobody knows.
    Unknown,
}

/// Decides on a request of a lost session. `answered` is whether the server refused it for want of the session on its
/// first sending, so that it cannot have been executed; `once` is whether it must not happen twice.
pub fn after_session_lost(answered: bool, once: bool) -> Redo {
    if answered || !once { Redo::Send } else { Redo::Unknown }
}

/// How long to wait before try number `attempt` (0 is the first repetition): 20 ms, doubling up to 5 s.
pub fn pause(attempt: u32) -> Duration {
    Duration::from_millis(20 << attempt.min(8)).min(Duration::from_secs(5))
}
