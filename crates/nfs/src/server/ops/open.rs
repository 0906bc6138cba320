//! OPEN: opens a regular file, and creates it if requested (RFC 8881 §18.16).
//!
//! The server supports claims by name, by filehandle and under a delegation, and reclaims of opens from before a
//! restart.

use crate::attrs::{self, Mask};
use crate::fs::{Change, FileSystem, OpenHow, access};
use crate::server::Opening;
use crate::server::callbacks::Callbacks;
use crate::server::compound::{Answer, Compound, Refusal};
use crate::server::files::{change_info, check_regular};
use crate::state::delegations::{DelegationKind, Use, WANT_DATA, Want, WhyNoDelegation};
use crate::state::{ClientId, State};
use bytes::Bytes;
use types::{Attrs, FileId, SetAttrs, Status, Timestamp, Verifier};
use wire::nfs4::*;

/// The wants of RFC 9754 for delegated timestamps (§5) and for a delegation instead of an open (§4). The server accepts
/// and ignores these bits in OPEN.
const WISHES_OF_RFC_9754: u32 = 0x10_0000 | 0x20_0000;

/// A file that OPEN found or created.
struct Found {
    attrs: Attrs,
    /// Whether this OPEN created the file. The mode of a new file does not restrict the open that created it.
    created: bool,
    change: Change,
    /// The attributes that the creation set, for `attrset` of the reply.
    set: Mask,
    /// Whether OPEN must truncate the file to 0 bytes: UNCHECKED4 with size 0 found an existing file.
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
    // While the guard `opening` exists, no removal frees the file that this OPEN finds or creates by name, even before
    // the server has recorded the open.
    let opening = by_name.then(|| Opening::begin(&cx.server.opening));
    let found = find(cx, here, &args).await?;
    let file = found.attrs.id;
    check_regular(found.attrs.kind)?;
    check_delegation(cx, file, share, &args.claim)?;
    if !found.created {
        check_permission(cx, &found.attrs, share, found.truncate, by_name).await?;
    }
    let what = if found.truncate { Use::Write } else { Use::of_open(share, args.share_deny) };
    clear_way(cx, file, what, reclaim).await?;
    let server = cx.server;
    let open = |state: &mut State| {
        server.check_fenced(file)?;
        // Check again: grace period and delegations may have changed while OPEN waited for delegations or fences.
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
    // The result flag promises CB_NOTIFY_LOCK to clients with a backchannel, so that they retry denied locks rarely.
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

/// Recalls the directory delegations of other clients before OPEN creates a file in the directory.
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

/// Recalls conflicting delegations of the file and waits for their return, then waits for fences in progress. Fails
/// with DELAY if either wait takes longer than one second (`PATIENCE`).
async fn clear_way<F: FileSystem, C: Callbacks>(
    cx: &Compound<'_, F, C>,
    file: FileId,
    what: Use,
    reclaim: bool,
) -> Answer<()> {
    if !reclaim {
        // Drop the guard against new delegations, so that this OPEN itself can get a delegation of the file.
        drop(cx.server.make_way(&cx.ctx, file, what, Some(cx.client())).await?);
    }
    cx.server.fenced(file).await
}

/// Makes the opened file the current filehandle, with the open's stateid. If the OPEN was by name, records the
/// directory of the name.
fn go_on_with<F: FileSystem, C: Callbacks>(
    cx: &mut Compound<'_, F, C>,
    file: FileId,
    stateid: stateid4,
    dir: Option<FileId>,
) {
    // Callbacks must use the filehandle that the client knows, and a filehandle contains an export. After an OPEN by
    // filehandle, this is the export of the filehandle that the client sent. After an OPEN by name, this is the
    // current export of the file.
    let place = if dir.is_some() { cx.fs().reached_now(cx.ctx.place) } else { cx.ctx.place };
    cx.server.note_reached(cx.client().0, file, place);
    cx.opened_in = dir.map(|dir| (file, dir)).or(cx.opened_in);
    cx.set_place(file, place);
    cx.set_stateid(stateid);
}

/// Finds the file that the claim names, or creates the file if requested.
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
        // This server does not support CLAIM_DELEGATE_PREV, because the delegations of a client end when the client
        // restarts.
        (CLAIM_DELEGATE_PREV(_) | CLAIM_DELEG_PREV_FH, _) => Err(NFS4ERR_NOTSUPP.into()),
    }
}

/// For a claim under a delegation: checks that the client holds the delegation, and that the delegation permits the
/// access bits of the OPEN.
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
        DelegationKind::Read if share & OPEN4_SHARE_ACCESS_WRITE != 0 => Err(NFS4ERR_OPENMODE.into()),
        _ => Ok(()),
    }
}

fn plain(attrs: Attrs, change: Change) -> Found {
    Found { attrs, created: false, change, set: Mask::NONE, truncate: false }
}

/// Checks the share bits and the want of an OPEN: at least one access bit, and no unknown bit.
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

/// Creates the file, or returns the existing file of this name.
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

/// Handles an OPEN with creation in a read-only export: returns an existing file if UNCHECKED4 asks for no truncation,
/// otherwise fails with ROFS or EXIST.
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

/// Checks the caller's permissions to open an existing file. The owner of the file may always open the file by
/// filehandle, because clients recover opens in this way and the mode may have changed.
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
    // A caller that may execute a file may also open it for reading, because the client must read a program to execute
    // it.
    let may_read = granted & (access::READ | access::EXECUTE) != 0;
    let may_write = granted & access::MODIFY != 0;
    if (reads && !may_read) || (writes && !may_write) { Err(NFS4ERR_ACCESS.into()) } else { Ok(()) }
}

/// Completes an OPEN after the server has recorded the open. Returns STALE if a removal began to free the file before
/// the open was recorded. Truncates the file if the OPEN requests this. A removal that begins after the open was
/// recorded does not free the file.
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
        // A client has reclaimed an open of a file without a name. Keep the file as an orphan until its last CLOSE.
        cx.server.keep_orphan(file);
    }
    Ok(attrs)
}

/// Replaces STALE by DELAY if the OPEN found the file by name. STALE then shows that a removal of this name is in
/// progress. When the client sends the OPEN again, the removal has usually ended.
fn look_again(refusal: Refusal, found: bool) -> Refusal {
    if found && refusal.status == NFS4ERR_STALE { NFS4ERR_DELAY.into() } else { refusal }
}

/// Returns the client's want for a delegation. If the client wants no delegation or cancels an earlier want, returns as
/// error the value OPEN_DELEGATE_NONE_EXT for the OPEN reply.
fn want(share_access: u32) -> Result<Want, open_delegation4> {
    let refused = |why| Err(open_delegation4::OPEN_DELEGATE_NONE_EXT(open_none_delegation4::Default(why)));
    match share_access & OPEN4_SHARE_ACCESS_WANT_DELEG_MASK {
        OPEN4_SHARE_ACCESS_WANT_NO_PREFERENCE => Ok(Want::None),
        OPEN4_SHARE_ACCESS_WANT_READ_DELEG => Ok(Want::Exactly(DelegationKind::Read)),
        OPEN4_SHARE_ACCESS_WANT_WRITE_DELEG => Ok(Want::Exactly(DelegationKind::Write)),
        OPEN4_SHARE_ACCESS_WANT_NO_DELEG => refused(WND4_NOT_WANTED),
        OPEN4_SHARE_ACCESS_WANT_CANCEL => refused(WND4_CANCELLED),
        WANT_DATA => Ok(Want::Data),
        _ => Ok(Want::Any),
    }
}

/// Returns the kind of delegation that CLAIM_PREVIOUS reclaims together with an open.
fn reclaimed(claim: &open_claim4) -> Option<DelegationKind> {
    match claim {
        open_claim4::CLAIM_PREVIOUS(OPEN_DELEGATE_READ) => Some(DelegationKind::Read),
        open_claim4::CLAIM_PREVIOUS(OPEN_DELEGATE_WRITE) => Some(DelegationKind::Write),
        _ => None,
    }
}

/// Checks whether a client may reclaim a delegation together with an open. A reclaim extends the grace period.
fn check_reclaim(
    state: &mut State,
    client: ClientId,
    file: FileId,
    claim: &open_claim4,
    now: Timestamp,
) -> Result<(), nfsstat4> {
    if let Some(kind) = reclaimed(claim) {
        state.check_delegation_reclaim(client, file, kind)?;
    }
    if matches!(claim, open_claim4::CLAIM_PREVIOUS(_)) {
        state.reclaimed(now);
    }
    Ok(())
}

/// Grants a delegation together with an open that is already recorded, if possible and useful.
///
/// A client that states no want (WANT_NO_PREFERENCE) gets no delegation of a new file. New files are usually written,
/// closed and often removed, so the request that returns the delegation costs more than the delegation saves.
async fn delegate<F: FileSystem, C: Callbacks>(
    cx: &Compound<'_, F, C>,
    args: &OPEN4args,
    attrs: Attrs,
    created: bool,
) -> Answer<open_delegation4> {
    let (client, now, file) = (cx.client(), cx.ctx.now, attrs.id);
    if let Some(kind) = reclaimed(&args.claim) {
        let want = want(args.share_access).unwrap_or(Want::None);
        let held = (kind, args.share_access, want);
        let reclaim = |state: &mut State| state.reclaim_delegation(client, file, held, attrs.change, now);
        let (stateid, recall) = cx.change(reclaim).await??;
        return Ok(delegation(stateid, kind, recall));
    }
    let granted = match &args.claim {
        open_claim4::CLAIM_NULL(_) | open_claim4::CLAIM_FH => match want(args.share_access) {
            Err(none) => return Ok(none),
            Ok(Want::None) if created => return Ok(open_delegation4::OPEN_DELEGATE_NONE),
            Ok(want) => {
                cx.change(|state| state.delegate(client, file, (args.share_access, want), attrs.change, now)).await?
            }
        },
        // Grant no delegation to a client that opens under a delegation, because this client is about to return the
        // delegation that it holds. Grant none either to a client that reclaims an open without a delegation.
        _ => return Ok(open_delegation4::OPEN_DELEGATE_NONE),
    };
    let why = match granted {
        Ok((stateid, kind)) => return Ok(delegation(stateid, kind, false)),
        Err(_) if want(args.share_access) == Ok(Want::None) => return Ok(open_delegation4::OPEN_DELEGATE_NONE),
        // `false` in `open_none_delegation4` means that the server sends no callback when a delegation becomes
        // available.
        Err(WhyNoDelegation::Contention) => open_none_delegation4::WND4_CONTENTION(false),
        Err(WhyNoDelegation::Resource | WhyNoDelegation::Unfit) => open_none_delegation4::WND4_RESOURCE(false),
    };
    Ok(open_delegation4::OPEN_DELEGATE_NONE_EXT(why))
}

/// Encodes a delegation for the reply. The delegation contains no permissions, so the client sends ACCESS. The
/// delegation promises no disk space, so the client writes dirty data back before it closes a file (RFC 8881 §10.4.1).
fn delegation(stateid: stateid4, kind: DelegationKind, recall: bool) -> open_delegation4 {
    let permissions = nfsace4 { r#type: ACE4_ACCESS_ALLOWED_ACE_TYPE, flag: 0, access_mask: 0, who: Bytes::new() };
    match kind {
        // OPEN never grants a directory delegation, because it opens regular files only.
        DelegationKind::Names => open_delegation4::OPEN_DELEGATE_NONE,
        DelegationKind::Read => {
            open_delegation4::OPEN_DELEGATE_READ(open_read_delegation4 { stateid, recall, permissions })
        }
        DelegationKind::Write => open_delegation4::OPEN_DELEGATE_WRITE(open_write_delegation4 {
            stateid,
            recall,
            space_limit: nfs_space_limit4::NFS_LIMIT_SIZE(0),
            permissions,
        }),
    }
}
