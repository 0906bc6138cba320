//! LOCK: locks a byte range of the current file (RFC 8881 §18.10).

use crate::fs::FileSystem;
use crate::server::callbacks::Callbacks;
use crate::server::compound::{Answer, Compound};
use crate::server::files::{denied, lock_kind, lock_span};
use crate::state::State;
use crate::state::locks::{Locked, Locker};
use wire::nfs4::*;

pub(super) async fn run<F: FileSystem, C: Callbacks>(
    cx: &mut Compound<'_, F, C>,
    args: LOCK4args,
) -> Answer<LOCK4resok> {
    let file = cx.file()?;
    let span = lock_span(args.offset, args.length)?;
    let (kind, wait) = lock_kind(args.locktype);
    let client = cx.client();
    let now = cx.ctx.now;
    cx.state(|state| state.check_grace(client, args.reclaim))?;
    cx.regular(file).await?;
    let stateid = match &args.locker {
        locker4::TRUE(new) => cx.stateid(new.open_stateid)?,
        locker4::FALSE(known) => cx.stateid(known.lock_stateid)?,
    };
    let locker = match &args.locker {
        locker4::TRUE(new) => Locker::Open { stateid: &stateid, owner: &new.lock_owner.owner },
        locker4::FALSE(_) => Locker::Held(&stateid),
    };
    cx.server.fenced(file).await?;
    let server = cx.server;
    let lock = |state: &mut State| {
        server.check_fenced(file)?;
        // Check the grace period under the lock of the state tables: while this request waited for a fence, the grace
        // period may have ended and another client may have held the byte-range lock.
        state.check_grace(client, args.reclaim)?;
        let locked = state.lock(client, file, locker, (span, kind), wait, now)?;
        if args.reclaim {
            state.reclaimed(now);
        }
        Ok::<_, nfsstat4>(locked)
    };
    let locked = cx.change(lock).await??;
    match locked {
        Locked::Granted(lock_stateid) => {
            cx.set_stateid(lock_stateid);
            Ok(LOCK4resok { lock_stateid })
        }
        Locked::Denied(_) if args.reclaim => Err(NFS4ERR_RECLAIM_CONFLICT.into()),
        Locked::Denied(by) => Err(denied(by)),
    }
}
