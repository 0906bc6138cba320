//! The supervisor of one configured iod: it connects to the iod, registers it, watches it, and reconnects after a
//! failure.

use super::claiming::Unclaimed;
use super::link::{Link, SILENT, within};
use super::pending_fences::tell_fences;
use super::{ConnectionState, Iods, Member, Registered, register};
use layout::kinds::native::{BOOT_ID_MAX, Local, SOCKET_PATH_MAX};
use net::Address;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use types::Status;
use wire::native::{Nothing, Procedure, StatsReply};

/// Pause between the first and the second attempt to connect to an iod. Each further failure doubles the pause.
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// Longest pause between two attempts to connect to an iod.
const PAUSE_MAX: Duration = Duration::from_secs(3);
/// Interval at which the mgr requests the capacity and the counters of a connected iod.
const STATS_EVERY: Duration = Duration::from_secs(2);

/// Time limit for the reply to the first request after HELLO, shorter than [`SILENT`]. The iod may have died since its
/// reply to HELLO. The iod executes no other request of this mgr at this time, so no other request delays the reply.
const SILENT_AT_FIRST: Duration = Duration::from_secs(5);

/// Keeps the mgr connected to the iod at the configured address with index `slot`, forever.
pub(super) async fn run(iods: Arc<Iods>, slot: usize) {
    let mut pause = PAUSE_MIN;
    loop {
        let address = &iods.slots[slot].address;
        let problem = match join(&iods, slot).await {
            Ok((number, link)) => {
                pause = PAUSE_MIN;
                tracing::info!(%address, number, iod = %link.hello.iod, path = %link.path(), "iod is up");
                let why = watch(&iods, number, &link).await;
                leave(&iods, number, &link);
                why
            }
            Err(problem) => problem,
        };
        iods.set_tried(slot);
        let connection = ConnectionState::Down(problem);
        let changed = iods.slots[slot].connection.send_if_modified(|old| {
            let changed = *old != connection;
            *old = connection.clone();
            changed
        });
        if let (true, ConnectionState::Down(problem)) = (changed, connection) {
            tracing::warn!(%address, "iod is down: {problem}");
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// Connects to the iod at the configured address with index `slot`, claims the iod and registers it.
async fn join(iods: &Iods, slot: usize) -> Result<(u16, Arc<Link>), String> {
    let Iods { cluster, counters, .. } = iods;
    let address = &iods.slots[slot].address;
    let incarnation = iods.next_incarnation();
    let link = Link::connect(address, cluster.fsid, &cluster.key, incarnation, counters).await;
    let link = link.map_err(|e| e.to_string())?;
    let link = Arc::new(link);
    let stats: StatsReply = within(SILENT_AT_FIRST, link.call(Procedure::Stats, &Nothing))
        .await
        .map_err(|e| format!("no answer to STATS: {e}"))?;
    iods.may_claim(slot, &link).await.map_err(|why| unclaimed(iods, address, why))?;
    let known = iods.state().numbers.get(&link.hello.iod).copied();
    if let Some(number) = known {
        tell_fences(iods, number, &link).await?;
        // Check again that no iod has refused the store: another iod may have refused the store while the mgr sent the
        // fences.
        iods.check_not_refused().map_err(|why| unclaimed(iods, address, why))?;
    }
    let claim = iods.claim_now(&link).await.map_err(|why| unclaimed(iods, address, why))?;
    let registered = register(iods, address, &link).await.map_err(|e| format!("cannot be registered: {e}"))?;
    let number = registered.number;
    // Send the fences that the namespace has stored since the mgr last sent fences to this iod.
    tell_fences(iods, number, &link).await?;
    {
        let mut state = iods.state();
        let twin = state.members.get(&number).and_then(|m| m.link.as_ref()).is_some_and(|l| !l.is_closed());
        if twin {
            return Err("this iod is already connected at another configured address".into());
        }
        iods.verifiers.came(number, link.hello.verifier);
        let member =
            Member { registered, link: Some(link.clone()), since: Instant::now(), stats, claimed: Some(claim.mark) };
        state.members.insert(number, member);
    }
    // Claim the iod again: the mgr may have made a new mark during this function, before this iod was recorded as
    // connected, and sent the new mark only to iods that were recorded as connected.
    if let Err(why) = iods.claim_again(number, &link).await {
        leave(iods, number, &link);
        return Err(unclaimed(iods, address, why));
    }
    iods.slots[slot].connection.send_replace(ConnectionState::Up(number));
    iods.came_up.send_modify(|n| *n += 1);
    Ok((number, link))
}

/// Returns the text that `weir status` shows for an iod that the mgr did not claim. If the iod refused the store,
/// records the refusal, which may stop the mgr.
fn unclaimed(iods: &Iods, address: &Address, why: Unclaimed) -> String {
    match why {
        Unclaimed::Failed(problem) => problem,
        Unclaimed::Refused(refusal) => {
            iods.refuse(address.to_string(), refusal);
            refusal.to_string()
        }
    }
}

/// Creates or updates the registry record of the iod behind `link`, and returns the record.
async fn register(iods: &Iods, address: &Address, link: &Link) -> Result<Registered, Status> {
    let id = link.hello.iod;
    let local = link.proven.local.as_ref().filter(|l| l.host.len() <= BOOT_ID_MAX && l.path.len() <= SOCKET_PATH_MAX);
    let local = local.map(|l| Local { boot_id: l.host.clone(), path: l.path.clone().into() });
    let tcp = match address {
        Address::Tcp { .. } => vec![address.to_string()],
        Address::Unix(_) => Vec::new(),
    };
    let (known, registered) = {
        let mut state = iods.state();
        let number = match state.numbers.get(&id) {
            Some(number) => *number,
            // Allocate the iod number while `state` is locked, so that two iods that register at the same time get
            // different numbers.
            None => {
                let free = (0..=u16::MAX).find(|n| !state.numbers.values().any(|taken| taken == n));
                let number = free.ok_or(Status::NoSpc)?;
                state.numbers.insert(id, number);
                number
            }
        };
        let known = state.members.get(&number).map(|m| m.registered.clone());
        (known, Registered { number, id, tcp, local })
    };
    if known.as_ref() != Some(&registered) {
        // If the metadata store returns an error, keep the iod number allocated, because the store may have the
        // registry record nevertheless.
        register::put(&iods.namespace, &registered).await?;
    }
    Ok(registered)
}

/// Requests the capacity and the counters of the iod at intervals until the link to the iod is closed. Returns why the
/// link was closed.
async fn watch(iods: &Iods, number: u16, link: &Link) -> String {
    let stats = async {
        loop {
            tokio::time::sleep(STATS_EVERY).await;
            let Ok(answer) = tokio::time::timeout(SILENT, link.call::<StatsReply>(Procedure::Stats, &Nothing)).await
            else {
                return;
            };
            if let Ok(stats) = answer
                && let Some(member) = iods.state().members.get_mut(&number)
            {
                member.stats = stats;
            }
        }
    };
    tokio::select! {
        biased;
        why = link.closed() => why.to_string(),
        () = stats => {
            link.close();
            format!("no answer for {} s", SILENT.as_secs())
        }
    }
}

/// Records that the iod is down, so that no new request uses this link.
fn leave(iods: &Iods, number: u16, link: &Arc<Link>) {
    if let Some(member) = iods.state().members.get_mut(&number)
        && member.link.as_ref().is_some_and(|l| Arc::ptr_eq(l, link))
    {
        member.link = None;
        member.since = Instant::now();
        iods.verifiers.left(number);
    }
}
