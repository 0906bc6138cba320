//! OPEN: opens a regular file, and creates it if requested (RFC 8881 §18.16).
//!
//! Supports claims by name, by filehandle, under a delegation, and, after a restart of the server, reclaims of earlier
//! opens.

use crate::attrs::{self, Mask};
use crate::fs::{Change, FileSystem, OpenHow, access};
use crate::server::Opening;
use crate::server::callbacks::Callbacks;
use crate::server::compound::{Answer, Compound, Refusal};
use crate::server::files::{change_info, check_regular};
use crate::state::delegations::{NotGiven, Power, Use, WANT_DATA, Wish};
use crate::state::{ClientId, State};
use bytes::Bytes;
use types::{Attrs, FileId, SetAttrs, Status, Timestamp, Verifier};
use wire::nfs4::*;

/// Delegated timestamps, and a delegation instead of an open (RFC 9754 §4, §5): the server accepts these wishes and
/// does not fulfil them.
const WISHES_OF_RFC_9754: u32 = 0x10_0000 | 0x20_0000;

/// A file that OPEN found or created.
struct Found {
    attrs: Attrs,
    /// Whether this call created it: the mode of a new file does not restrict the open that created it.
    created: bool,
    change: Change,
    /// Attributes that the creation set.
    set: Mask,
    /// Whether to truncate the file to size 0, as UNCHECKED4 of an existing file requests with a size of 0.
    truncate: bool,
}

pub(super) async fn run<F: FileSystem, C: Callbacks>(
    cx: &mut Compound<'_, F, C>,
    args: OPEN4args,
) -> Answer<OPEN4resok> {
    let here = cx.file()?;
    let share = args.share_access & OPEN4_SHARE_ACCESS_BOTH;
    check_share(&args, cx.ctx.minor)?;
    let (client, now) = (cx.client(), cx.ctx.now);
    let reclaim = matches!(args.claim, open_claim4::CLAIM_PREVIOUS(_));
    cx.state(|state| state.check_grace(client, reclaim))?;
    if share & OPEN4_SHARE_ACCESS_WRITE != 0 {
        cx.check_writable()?;
    }
    let by_name = matches!(args.claim, open_claim4::CLAIM_NULL(_) | open_claim4::CLAIM_DELEGATE_CUR(_));
    make_way_for_new(cx, here, &args).await?;
    // From here on no removal frees a file found or created by name before its open is recorded.
    let opening = by_name.then(|| Opening::begin(&cx.server.opening));
    let found = find(cx, here, &args).await?;
    let file = found.attrs.id;
    check_regular(found.attrs.kind)?;
    check_delegation(cx, file, share, &args.claim)?;
    if !found.created {
        check_permission(cx, &found.attrs, share, found.truncate, by_name).await?;
    }
    let what = if found.truncate { Use::Change } else { Use::of_open(share, args.share_deny) };
    clear_way(cx, file, what, reclaim).await?;
    let server = cx.server;
    let open = |state: &mut State| {
        server.check_fenced(file)?;
        // The grace period may have ended meanwhile, and other clients have got delegations.
        state.check_grace(client, reclaim)?;
        let in_the_way = state.is_delegated(file, what, Some(client));
        match in_the_way {
            true if reclaim => return Err(NFS4ERR_RECLAIM_CONFLICT),
            true => return Err(NFS4ERR_DELAY),
            false => check_reclaim(state, client, file, &args.claim, now)?,
        }
        state.open(client, &args.owner.owner, file, share, args.share_deny)
    };
    let opened = cx.change(open).await?;
    drop(opening);
    let opened = match opened {
        Err(NFS4ERR_SHARE_DENIED) if reclaim => return Err(NFS4ERR_RECLAIM_CONFLICT.into()),
        opened => opened?,
    };
    let delegation = match confirm(cx, &found, by_name).await {
        Ok(attrs) => delegate(cx, &args, attrs, found.created).await,
        Err(refusal) => Err(look_again(refusal, by_name && !found.created)),
    };
    let delegation = match delegation {
        Ok(delegation) => delegation,
        Err(refusal) => {
            if !opened.upgraded {
                cx.change(|state| state.close(client, file, &opened.stateid)).await??;
            }
            return Err(refusal);
        }
    };
    // A client that receives notifications waits for long between two attempts.
    let notifies = if cx.state(|state| state.is_callable(client)) { OPEN4_RESULT_MAY_NOTIFY_LOCK } else { 0 };
    go_on_with(cx, file, opened.stateid, by_name.then_some(here));
    Ok(OPEN4resok {
        stateid: opened.stateid,
        cinfo: change_info(found.change),
        rflags: OPEN4_RESULT_LOCKTYPE_POSIX | OPEN4_RESULT_PRESERVE_UNLINKED | notifies,
        attrset: found.set.to_bitmap(),
        delegation,
    })
}

/// Waits for the return of conflicting delegations of the directory before a file is created in it.
async fn make_way_for_new<F: FileSystem, C: Callbacks>(
    cx: &mut Compound<'_, F, C>,
    dir: FileId,
    args: &OPEN4args,
) -> Answer<()> {
    match (&args.openhow, &args.claim) {
        (openflag4::OPEN4_CREATE(_), open_claim4::CLAIM_NULL(_)) if !cx.terms.read_only => cx.make_way_in(dir).await,
        _ => Ok(()),
    }
}

/// Waits for conflicting delegations, and for fenced clients, for as long as a request may.
async fn clear_way<F: FileSystem, C: Callbacks>(
    cx: &Compound<'_, F, C>,
    file: FileId,
    what: Use,
    reclaim: bool,
) -> Answer<()> {
    if !reclaim {
        // Unfrozen at once after their return: this open may get a delegation itself.
        drop(cx.server.make_way(&cx.ctx, file, what, Some(cx.client())).await?);
    }
    cx.server.fenced(file).await
}

/// Makes the file the current one for the following operations, and notes the directory if it was opened by name.
fn go_on_with<F: FileSystem, C: Callbacks>(
    cx: &mut Compound<'_, F, C>,
    file: FileId,
    stateid: stateid4,
    dir: Option<FileId>,
) {
    // A client that opens the file by its handle knows it by that handle.
    let place = if dir.is_some() { cx.fs().reached_now(cx.ctx.place) } else { cx.ctx.place };
    cx.server.note_reached(cx.client().0, file, place);
    cx.opened_in = dir.map(|dir| (file, dir)).or(cx.opened_in);
    cx.set_place(file, place);
    cx.set_stateid(stateid);
}

/// Finds the file that the claim names, or creates it if requested.
async fn find<F: FileSystem, C: Callbacks>(cx: &Compound<'_, F, C>, here: FileId, args: &OPEN4args) -> Answer<Found> {
    use open_claim4::*;
    match (&args.claim, &args.openhow) {
        (CLAIM_NULL(name), openflag4::OPEN4_CREATE(how)) => create(cx, here, name, how).await,
        (CLAIM_NULL(name) | CLAIM_DELEGATE_CUR(open_claim_delegate_cur4 { file: name, .. }), openflag4::Default(_)) => {
            let change = cx.fs().getattr(&cx.ctx, here).await?.change;
            let attrs = cx.fs().lookup(&cx.ctx, here, name).await?;
            Ok(plain(attrs, Change { before: change, after: change, atomic: false }))
        }
        (CLAIM_FH | CLAIM_PREVIOUS(_) | CLAIM_DELEG_CUR_FH(_), openflag4::Default(_)) => {
            Ok(plain(cx.fs().getattr(&cx.ctx, here).await?, Change::default()))
        }
        (CLAIM_FH | CLAIM_PREVIOUS(_) | CLAIM_DELEGATE_CUR(_) | CLAIM_DELEG_CUR_FH(_), _) => Err(NFS4ERR_INVAL.into()),
        // Delegations do not outlive their client.
        (CLAIM_DELEGATE_PREV(_) | CLAIM_DELEG_PREV_FH, _) => Err(NFS4ERR_NOTSUPP.into()),
    }
}

/// Checks that the client has the delegation under which it claims to have opened the file, and that it fits this use.
fn check_delegation<F: FileSystem, C: Callbacks>(
    cx: &Compound<'_, F, C>,
    file: FileId,
    share: u32,
    claim: &open_claim4,
) -> Answer<()> {
    let stateid = match claim {
        open_claim4::CLAIM_DELEGATE_CUR(cur) => cur.delegate_stateid,
        open_claim4::CLAIM_DELEG_CUR_FH(stateid) => *stateid,
        _ => return Ok(()),
    };
    let stateid = cx.stateid(stateid)?;
    match cx.state(|state| state.find_delegation(cx.client(), file, &stateid))? {
        Power::Read if share & OPEN4_SHARE_ACCESS_WRITE != 0 => Err(NFS4ERR_OPENMODE.into()),
        _ => Ok(()),
    }
}

fn plain(attrs: Attrs, change: Change) -> Found {
    Found { attrs, created: false, change, set: Mask::NONE, truncate: false }
}

/// Checks the share bits and wants: some access, no unknown bit.
fn check_share(args: &OPEN4args, minor: u32) -> Result<(), nfsstat4> {
    const SIGNALS: u32 =
        OPEN4_SHARE_ACCESS_WANT_SIGNAL_DELEG_WHEN_RESRC_AVAIL | OPEN4_SHARE_ACCESS_WANT_PUSH_DELEG_WHEN_UNCONTENDED;
    let wants = args.share_access & OPEN4_SHARE_ACCESS_WANT_DELEG_MASK;
    let later = if minor > 1 { WISHES_OF_RFC_9754 } else { 0 };
    let known = OPEN4_SHARE_ACCESS_BOTH | OPEN4_SHARE_ACCESS_WANT_DELEG_MASK | SIGNALS | later;
    let legal = args.share_access & OPEN4_SHARE_ACCESS_BOTH != 0
        && args.share_access & !known == 0
        && (wants <= OPEN4_SHARE_ACCESS_WANT_CANCEL || wants == WANT_DATA)
        && args.share_deny <= OPEN4_SHARE_DENY_BOTH;
    if legal { Ok(()) } else { Err(NFS4ERR_INVAL) }
}

/// Creates the file, or returns the existing one with its name.
async fn create<F: FileSystem, C: Callbacks>(
    cx: &Compound<'_, F, C>,
    dir: FileId,
    name: &component4,
    how: &createhow4,
) -> Answer<Found> {
    let (how, (set, unsynced)) = match how {
        createhow4::UNCHECKED4(attrs) => (OpenHow::Unchecked, cx.to_make(attrs)?),
        createhow4::GUARDED4(attrs) => (OpenHow::Guarded, cx.to_make(attrs)?),
        createhow4::EXCLUSIVE4(verifier) => (OpenHow::Exclusive(Verifier(*verifier)), Default::default()),
        createhow4::EXCLUSIVE4_1(both) => (OpenHow::Exclusive(Verifier(both.cva_verf)), cx.to_make(&both.cva_attrs)?),
    };
    if cx.terms.read_only {
        return found_only(cx, dir, name, &how, set).await;
    }
    let opened = cx.fs().open_create(&cx.ctx, dir, name, how, set, unsynced).await?;
    let truncate = !opened.created && set.size == Some(0);
    let applied = if opened.created {
        let heeded = if unsynced { Mask::of(&[attrs::FATTR4_WEIR_UNSYNCED]) } else { Mask::NONE };
        attrs::set_mask(&set).or(heeded)
    } else {
        attrs::set_mask(&SetAttrs { size: set.size.filter(|size| *size == 0), ..SetAttrs::default() })
    };
    Ok(Found { attrs: opened.attrs, created: opened.created, change: opened.change, set: applied, truncate })
}

/// Returns an existing file in a read-only export, if UNCHECKED4 asks for no change.
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

/// Checks whether the caller may open an existing file. Clients recover opens by opening the filehandle, so the owner
/// may do this whatever the mode is now.
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
    let granted = cx.fs().access(&cx.ctx, attrs.id, asked).await;
    let granted = granted.map_err(|refusal| look_again(refusal.into(), by_name))?;
    // A caller that may execute a program may read it, because the client must load it.
    let may_read = granted & (access::READ | access::EXECUTE) != 0;
    let may_write = granted & access::MODIFY != 0;
    if (reads && !may_read) || (writes && !may_write) { Err(NFS4ERR_ACCESS.into()) } else { Ok(()) }
}

/// The part of OPEN that must follow the record of the open: from then on a removal keeps the file. Checks that no
/// removal came before, and truncates the file if requested.
async fn confirm<F: FileSystem, C: Callbacks>(cx: &Compound<'_, F, C>, found: &Found, by_name: bool) -> Answer<Attrs> {
    let file = found.attrs.id;
    if cx.server.is_reaping(file) {
        return Err(NFS4ERR_STALE.into());
    }
    if found.truncate && found.attrs.size > 0 {
        cx.recall_others(file).await;
        let cut = SetAttrs { size: Some(0), ..SetAttrs::default() };
        let attrs = cx.fs().setattr(&cx.ctx, file, cut, true).await?;
        cx.announce_size(file).await;
        return Ok(attrs);
    }
    let attrs = cx.fs().getattr(&cx.ctx, file).await?;
    if !by_name && attrs.nlink == 0 {
        // Opened again after a restart, without which it would have been an orphan all along.
        cx.server.keep_orphan(file);
    }
    Ok(attrs)
}

/// Turns STALE for a file that was `found` by its name into DELAY: the file was being removed, and soon the name is
/// free or names another file.
fn look_again(refusal: Refusal, found: bool) -> Refusal {
    if found && refusal.status == NFS4ERR_STALE { NFS4ERR_DELAY.into() } else { refusal }
}

/// Returns the wish for a delegation, or the answer to a client that wants none.
fn wish(share_access: u32) -> Result<Wish, open_delegation4> {
    let refused = |why| Err(open_delegation4::OPEN_DELEGATE_NONE_EXT(open_none_delegation4::Default(why)));
    match share_access & OPEN4_SHARE_ACCESS_WANT_DELEG_MASK {
        OPEN4_SHARE_ACCESS_WANT_NO_PREFERENCE => Ok(Wish::None),
        OPEN4_SHARE_ACCESS_WANT_READ_DELEG => Ok(Wish::Exactly(Power::Read)),
        OPEN4_SHARE_ACCESS_WANT_WRITE_DELEG => Ok(Wish::Exactly(Power::Write)),
        OPEN4_SHARE_ACCESS_WANT_NO_DELEG => refused(WND4_NOT_WANTED),
        OPEN4_SHARE_ACCESS_WANT_CANCEL => refused(WND4_CANCELLED),
        WANT_DATA => Ok(Wish::Data),
        _ => Ok(Wish::Any),
    }
}

/// Returns the delegation that is reclaimed together with an open from before the restart.
fn reclaimed(claim: &open_claim4) -> Option<Power> {
    match claim {
        open_claim4::CLAIM_PREVIOUS(OPEN_DELEGATE_READ) => Some(Power::Read),
        open_claim4::CLAIM_PREVIOUS(OPEN_DELEGATE_WRITE) => Some(Power::Write),
        _ => None,
    }
}

/// Checks whether a delegation can be reclaimed together with an open; extends the grace period for further reclaims.
fn check_reclaim(
    state: &mut State,
    client: ClientId,
    file: FileId,
    claim: &open_claim4,
    now: Timestamp,
) -> Result<(), nfsstat4> {
    if let Some(power) = reclaimed(claim) {
        state.check_delegation_reclaim(client, file, power)?;
    }
    if matches!(claim, open_claim4::CLAIM_PREVIOUS(_)) {
        state.reclaimed(now);
    }
    Ok(())
}

/// Grants a delegation with a recorded open, if possible and useful.
///
/// A client that did not ask gets none for a new file, which is usually written, closed and often removed: returning
/// the delegation would cost more than it saves.
async fn delegate<F: FileSystem, C: Callbacks>(
    cx: &Compound<'_, F, C>,
    args: &OPEN4args,
    attrs: Attrs,
    created: bool,
) -> Answer<open_delegation4> {
    let (client, now, file) = (cx.client(), cx.ctx.now, attrs.id);
    if let Some(power) = reclaimed(&args.claim) {
        let wish = wish(args.share_access).unwrap_or(Wish::None);
        let held = (power, args.share_access, wish);
        let reclaim = |state: &mut State| state.reclaim_delegation(client, file, held, attrs.change, now);
        let (stateid, recall) = cx.change(reclaim).await??;
        return Ok(delegation(stateid, power, recall));
    }
    let granted = match &args.claim {
        open_claim4::CLAIM_NULL(_) | open_claim4::CLAIM_FH => match wish(args.share_access) {
            Err(none) => return Ok(none),
            Ok(Wish::None) if created => return Ok(open_delegation4::OPEN_DELEGATE_NONE),
            Ok(wish) => {
                cx.change(|state| state.delegate(client, file, (args.share_access, wish), attrs.change, now)).await?
            }
        },
        // A client that opens under a delegation is about to return it; one without a delegation before the restart
        // gets none now.
        _ => return Ok(open_delegation4::OPEN_DELEGATE_NONE),
    };
    let why = match granted {
        Ok((stateid, power)) => return Ok(delegation(stateid, power, false)),
        Err(_) if wish(args.share_access) == Ok(Wish::None) => return Ok(open_delegation4::OPEN_DELEGATE_NONE),
        // The server sends no notification later.
        Err(NotGiven::Contention) => open_none_delegation4::WND4_CONTENTION(false),
        Err(NotGiven::Resource | NotGiven::Unfit) => open_none_delegation4::WND4_RESOURCE(false),
    };
    Ok(open_delegation4::OPEN_DELEGATE_NONE_EXT(why))
}

/// Encodes a delegation for the wire. It contains no permissions: the client asks with ACCESS. Nor does it promise disk
/// space, so the client writes its data back before it closes a file (RFC 8881 §10.4.1).
fn delegation(stateid: stateid4, power: Power, recall: bool) -> open_delegation4 {
    let permissions = nfsace4 { r#type: ACE4_ACCESS_ALLOWED_ACE_TYPE, flag: 0, access_mask: 0, who: Bytes::new() };
    match power {
        // Only directories have such delegations, and OPEN does not open a directory.
        Power::Names => open_delegation4::OPEN_DELEGATE_NONE,
        Power::Read => open_delegation4::OPEN_DELEGATE_READ(open_read_delegation4 { stateid, recall, permissions }),
        Power::Write => open_delegation4::OPEN_DELEGATE_WRITE(open_write_delegation4 {
            stateid,
            recall,
            space_limit: nfs_space_limit4::NFS_LIMIT_SIZE(0),
            permissions,
        }),
    }
}
