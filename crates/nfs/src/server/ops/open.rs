//! OPEN: opens a regular file, making it if asked (RFC 8881 §18.16).
//!
//! Claims by name, by filehandle and, after a restart of the server, of earlier opens. No delegations are given.

use crate::attrs::{self, Mask};
use crate::fs::{Change, FileSystem, OpenHow, access};
use crate::server::callbacks::Callbacks;
use crate::server::compound::{Answer, Compound};
use crate::server::files::{change_info, check_regular};
use crate::state::State;
use types::{Attrs, FileId, SetAttrs, Status, Verifier};
use wire::nfs4::*;

/// A file found or made.
struct Found {
    attrs: Attrs,
    /// Made by this call: its mode does not bind the open that made it.
    created: bool,
    change: Change,
    /// Attributes that the creation set.
    set: Mask,
    /// To be cut to nothing, as UNCHECKED4 of a file that exists asks with a size of 0.
    truncate: bool,
}

pub(super) async fn run<F: FileSystem, C: Callbacks>(
    cx: &mut Compound<'_, F, C>,
    args: OPEN4args,
) -> Answer<OPEN4resok> {
    let here = cx.file()?;
    let share = args.share_access & OPEN4_SHARE_ACCESS_BOTH;
    check_share(&args)?;
    let client = cx.client();
    let reclaim = matches!(args.claim, open_claim4::CLAIM_PREVIOUS(_));
    cx.state(|state| state.check_grace(client, reclaim))?;
    if matches!(args.claim, open_claim4::CLAIM_PREVIOUS(held) if held != OPEN_DELEGATE_NONE) {
        // No delegation was ever given.
        return Err(NFS4ERR_RECLAIM_BAD.into());
    }
    if share & OPEN4_SHARE_ACCESS_WRITE != 0 {
        cx.check_writable()?;
    }
    let by_name = matches!(args.claim, open_claim4::CLAIM_NULL(_));
    let found = match (&args.claim, &args.openhow) {
        (open_claim4::CLAIM_NULL(name), openflag4::OPEN4_CREATE(how)) => create(cx, here, name, how).await?,
        (open_claim4::CLAIM_NULL(name), openflag4::Default(_)) => {
            let change = cx.fs().getattr(&cx.ctx, here).await?.change;
            let attrs = cx.fs().lookup(&cx.ctx, here, name).await?;
            plain(attrs, Change { before: change, after: change, atomic: false })
        }
        (open_claim4::CLAIM_FH | open_claim4::CLAIM_PREVIOUS(_), openflag4::Default(_)) => {
            plain(cx.fs().getattr(&cx.ctx, here).await?, Change::default())
        }
        (open_claim4::CLAIM_FH | open_claim4::CLAIM_PREVIOUS(_), _) => return Err(NFS4ERR_INVAL.into()),
        _ => return Err(NFS4ERR_NOTSUPP.into()),
    };
    let file = found.attrs.id;
    if let Err(status) = check_regular(found.attrs.kind) {
        return Err(status.into());
    }
    if !found.created {
        check_permission(cx, &found.attrs, share, found.truncate, by_name).await?;
    }
    let open = |state: &mut State| {
        // The grace period may have ended meanwhile.
        state.check_grace(client, reclaim)?;
        state.open(client, &args.owner.owner, file, share, args.share_deny)
    };
    let opened = cx.change(open).await?;
    let opened = match opened {
        Err(NFS4ERR_SHARE_DENIED) if reclaim => return Err(NFS4ERR_RECLAIM_CONFLICT.into()),
        opened => opened?,
    };
    if let Err(refusal) = confirm(cx, &found, by_name).await {
        if !opened.upgraded {
            cx.change(|state| state.close(client, file, &opened.stateid)).await??;
        }
        return Err(refusal);
    }
    cx.server.note_reached(client.0, file, cx.ctx.place);
    cx.set_file(file);
    cx.set_stateid(opened.stateid);
    Ok(OPEN4resok {
        stateid: opened.stateid,
        cinfo: change_info(found.change),
        rflags: OPEN4_RESULT_LOCKTYPE_POSIX | OPEN4_RESULT_PRESERVE_UNLINKED,
        attrset: found.set.to_bitmap(),
        delegation: no_delegation(args.share_access),
    })
}

fn plain(attrs: Attrs, change: Change) -> Found {
    Found { attrs, created: false, change, set: Mask::NONE, truncate: false }
}

/// The share bits and wants: some access, no unknown bit.
fn check_share(args: &OPEN4args) -> Result<(), nfsstat4> {
    const SIGNALS: u32 =
        OPEN4_SHARE_ACCESS_WANT_SIGNAL_DELEG_WHEN_RESRC_AVAIL | OPEN4_SHARE_ACCESS_WANT_PUSH_DELEG_WHEN_UNCONTENDED;
    let wants = args.share_access & OPEN4_SHARE_ACCESS_WANT_DELEG_MASK;
    let known = OPEN4_SHARE_ACCESS_BOTH | OPEN4_SHARE_ACCESS_WANT_DELEG_MASK | SIGNALS;
    let legal = args.share_access & OPEN4_SHARE_ACCESS_BOTH != 0
        && args.share_access & !known == 0
        && wants <= OPEN4_SHARE_ACCESS_WANT_CANCEL
        && args.share_deny <= OPEN4_SHARE_DENY_BOTH;
    if legal { Ok(()) } else { Err(NFS4ERR_INVAL) }
}

/// Makes the file, or finds what has its name.
async fn create<F: FileSystem, C: Callbacks>(
    cx: &Compound<'_, F, C>,
    dir: FileId,
    name: &component4,
    how: &createhow4,
) -> Answer<Found> {
    let (how, set) = match how {
        createhow4::UNCHECKED4(attrs) => (OpenHow::Unchecked, cx.to_set(attrs)?),
        createhow4::GUARDED4(attrs) => (OpenHow::Guarded, cx.to_set(attrs)?),
        createhow4::EXCLUSIVE4(verifier) => (OpenHow::Exclusive(Verifier(*verifier)), SetAttrs::default()),
        createhow4::EXCLUSIVE4_1(both) => (OpenHow::Exclusive(Verifier(both.cva_verf)), cx.to_set(&both.cva_attrs)?),
    };
    if cx.terms.read_only {
        return found_only(cx, dir, name, &how, set).await;
    }
    let opened = cx.fs().open_create(&cx.ctx, dir, name, how, set).await?;
    let truncate = !opened.created && set.size == Some(0);
    let applied = if opened.created {
        attrs::set_mask(&set)
    } else {
        attrs::set_mask(&SetAttrs { size: set.size.filter(|size| *size == 0), ..SetAttrs::default() })
    };
    Ok(Found { attrs: opened.attrs, created: opened.created, change: opened.change, set: applied, truncate })
}

/// What is there already where nothing can be made: UNCHECKED4 asks for no more.
async fn found_only<F: FileSystem, C: Callbacks>(
    cx: &Compound<'_, F, C>,
    dir: FileId,
    name: &component4,
    how: &OpenHow,
    set: SetAttrs,
) -> Answer<Found> {
    let found = cx.fs().lookup(&cx.ctx, dir, name).await;
    match (found, how) {
        (Ok(_), OpenHow::Guarded) => Err(NFS4ERR_EXIST.into()),
        (Ok(attrs), OpenHow::Unchecked) if set.size.is_none() => Ok(plain(attrs, Change::default())),
        (Ok(_) | Err(Status::NoEnt), _) => Err(NFS4ERR_ROFS.into()),
        (Err(error), _) => Err(error.into()),
    }
}

/// Whether the caller may open a file that was there already. Opening by filehandle is how clients recover opens, so the
/// owner may do it whatever the mode says now.
async fn check_permission<F: FileSystem, C: Callbacks>(
    cx: &Compound<'_, F, C>,
    attrs: &Attrs,
    share: u32,
    truncate: bool,
    by_name: bool,
) -> Answer<()> {
    if !by_name && attrs.uid == cx.ctx.cred.uid {
        return Ok(());
    }
    let writes = share & OPEN4_SHARE_ACCESS_WRITE != 0 || truncate;
    let mut asked = if writes { access::MODIFY | access::EXTEND } else { 0 };
    let reads = share & OPEN4_SHARE_ACCESS_READ != 0;
    if reads {
        asked |= access::READ | access::EXECUTE;
    }
    let granted = cx.fs().access(&cx.ctx, attrs.id, asked).await?;
    // A program may be read by whoever may run it: the client has to load it.
    let may_read = granted & (access::READ | access::EXECUTE) != 0;
    let may_write = granted & access::MODIFY != 0;
    if (reads && !may_read) || (writes && !may_write) { Err(NFS4ERR_ACCESS.into()) } else { Ok(()) }
}

/// What can be done only once the open is on record: from then on a removal leaves the file alone. Makes sure that none
/// came before, and cuts the file if asked.
async fn confirm<F: FileSystem, C: Callbacks>(cx: &Compound<'_, F, C>, found: &Found, by_name: bool) -> Answer<()> {
    let file = found.attrs.id;
    if cx.server.is_reaping(file) {
        return Err(NFS4ERR_STALE.into());
    }
    if found.truncate && found.attrs.size > 0 {
        cx.recall_others(file).await;
        let cut = SetAttrs { size: Some(0), ..SetAttrs::default() };
        cx.fs().setattr(&cx.ctx, file, cut, true).await?;
        return Ok(());
    }
    let attrs = cx.fs().getattr(&cx.ctx, file).await?;
    if !by_name && attrs.nlink == 0 {
        // Opened again after a restart, without which it would have been an orphan all along.
        cx.server.keep_orphan(file);
    }
    Ok(())
}

/// Why no delegation is given, for those who asked for one.
fn no_delegation(share_access: u32) -> open_delegation4 {
    let why = match share_access & OPEN4_SHARE_ACCESS_WANT_DELEG_MASK {
        OPEN4_SHARE_ACCESS_WANT_NO_PREFERENCE => return open_delegation4::OPEN_DELEGATE_NONE,
        OPEN4_SHARE_ACCESS_WANT_NO_DELEG => open_none_delegation4::Default(WND4_NOT_WANTED),
        OPEN4_SHARE_ACCESS_WANT_CANCEL => open_none_delegation4::Default(WND4_CANCELLED),
        _ => open_none_delegation4::WND4_RESOURCE(false),
    };
    open_delegation4::OPEN_DELEGATE_NONE_EXT(why)
}
