//! Layouts: which client holds which bytes of which file for which use, and their return (RFC 8881 §12.5, §18.42 to
//! §18.44).

mod segments;

use crate::fs::Iomode;
use crate::state::delegations::Power;
use crate::state::stateids::{self, Form, Kind};
use crate::state::{ClientId, Effect, Gone, Result, State};
use segments::Segments;
pub use segments::{Filter, Segment};
use std::collections::{BTreeSet, HashMap};
use types::{ByteRange, FileId, Timestamp, limits};
use wire::nfs4::nfsstat4::*;
use wire::nfs4::{OPEN4_SHARE_ACCESS_WRITE, layouttype4, stateid4};

/// The largest number of separate segments that one client may hold of one file.
const SEGMENTS_MAX: usize = 32;

/// A recall that waits for its LAYOUTRETURN.
#[derive(Clone, Debug)]
struct Pending {
    id: RecallId,
    filter: Filter,
    /// Sequence number in the recall's stateid.
    seqid: u32,
    /// When the server revokes the layout.
    deadline: Timestamp,
    /// Whether the client has promised to return the layout.
    answered: bool,
}

/// The layouts of one client, file and type, under one stateid (§12.5.3).
#[derive(Clone, Debug)]
struct LayoutState {
    client: ClientId,
    file: FileId,
    kind: layouttype4,
    seqid: u32,
    /// The sequence number of the last LAYOUTGET.
    granted: u32,
    segments: Segments,
    pending: Vec<Pending>,
    /// When the server revoked it; the entry stays until the client shows that it knows.
    revoked: Option<Timestamp>,
}

/// Identifies one recall.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct RecallId(pub u64);

/// A CB_LAYOUTRECALL of type FILE to send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Recall {
    /// Identifies the recall in [`State::recall_answered`].
    pub id: RecallId,
    /// The client that receives it.
    pub client: ClientId,
    /// `lor_fh`.
    pub file: FileId,
    /// `clora_type`.
    pub kind: layouttype4,
    /// `clora_iomode`: `None` is ANY.
    pub iomode: Option<Iomode>,
    /// `lor_offset` and `lor_length`.
    pub range: ByteRange,
    /// `lor_stateid`; its sequence number is one above the last that the client received.
    pub stateid: stateid4,
}

/// A client's answer to a recall.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RecallAnswer {
    /// NFS4_OK: a LAYOUTRETURN will follow.
    WillReturn,
    /// NFS4ERR_NOMATCHING_LAYOUT: the client holds no such layout; no LAYOUTRETURN follows.
    NothingHeld,
    /// NFS4ERR_DELAY or no answer: send the same [`Recall`] again.
    Later,
}

/// The result of LAYOUTRETURN for one file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReturnedLayout {
    /// `lorr_stateid`; `None` if the client holds nothing any more.
    pub stateid: Option<stateid4>,
    /// The segments that this call returned.
    pub pieces: Vec<(Iomode, ByteRange)>,
}

/// A client with a layout.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Holder {
    /// The client.
    pub client: ClientId,
    /// The use.
    pub iomode: Iomode,
    /// The bytes.
    pub range: ByteRange,
}

/// All layouts.
#[derive(Clone, Debug, Default)]
pub struct Layouts {
    by_other: HashMap<[u8; 12], LayoutState>,
    by_key: HashMap<(ClientId, FileId, layouttype4), [u8; 12]>,
    by_file: HashMap<FileId, BTreeSet<[u8; 12]>>,
    by_client: HashMap<ClientId, BTreeSet<[u8; 12]>>,
    /// Number of revoked states that each client has not yet freed; every SEQUENCE reads it.
    revoked: HashMap<ClientId, usize>,
    /// Files for which the server grants no layout for the moment, with the number of freezes.
    frozen: HashMap<FileId, u32>,
    next_recall: u64,
    recalls: HashMap<RecallId, [u8; 12]>,
}

impl Layouts {
    pub(crate) fn len(&self) -> usize {
        self.by_other.len()
    }

    pub(crate) fn recalls(&self) -> usize {
        self.recalls.len()
    }

    pub(crate) fn of_client(&self, client: ClientId) -> usize {
        self.by_client.get(&client).map_or(0, BTreeSet::len)
    }

    pub(crate) fn any_revoked(&self, client: ClientId) -> bool {
        self.revoked.contains_key(&client)
    }

    fn states_on(&self, file: FileId) -> impl Iterator<Item = (&[u8; 12], &LayoutState)> {
        self.by_file.get(&file).into_iter().flatten().filter_map(|o| Some((o, self.by_other.get(o)?)))
    }

    fn get(&self, client: ClientId, stateid: &stateid4) -> Result<&LayoutState> {
        self.by_other.get(&stateid.other).filter(|s| s.client == client).ok_or(NFS4ERR_BAD_STATEID)
    }

    pub(crate) fn test(&self, client: ClientId, stateid: &stateid4) -> Result<()> {
        match self.get(client, stateid)? {
            state if state.revoked.is_some() => Err(NFS4ERR_ADMIN_REVOKED),
            state if stateid.seqid != 0 => check_layout_seqid(stateid.seqid, state.seqid),
            _ => Ok(()),
        }
    }

    pub(crate) fn free(&mut self, client: ClientId, stateid: &stateid4) -> Result<()> {
        if self.get(client, stateid)?.revoked.is_none() {
            return Err(NFS4ERR_LOCKS_HELD);
        }
        self.remove(&stateid.other);
        Ok(())
    }

    fn add(&mut self, other: [u8; 12], state: LayoutState) {
        self.by_key.insert((state.client, state.file, state.kind), other);
        self.by_file.entry(state.file).or_default().insert(other);
        self.by_client.entry(state.client).or_default().insert(other);
        self.by_other.insert(other, state);
    }

    fn remove(&mut self, other: &[u8; 12]) -> Option<LayoutState> {
        let state = self.by_other.remove(other)?;
        let key = (state.client, state.file, state.kind);
        if self.by_key.get(&key) == Some(other) {
            self.by_key.remove(&key);
        }
        if let Some(ids) = self.by_file.get_mut(&state.file) {
            ids.remove(other);
            if ids.is_empty() {
                self.by_file.remove(&state.file);
            }
        }
        if let Some(ids) = self.by_client.get_mut(&state.client) {
            ids.remove(other);
            if ids.is_empty() {
                self.by_client.remove(&state.client);
            }
        }
        for pending in &state.pending {
            self.recalls.remove(&pending.id);
        }
        if state.revoked.is_some()
            && let Some(count) = self.revoked.get_mut(&state.client)
        {
            *count -= 1;
            if *count == 0 {
                self.revoked.remove(&state.client);
            }
        }
        Some(state)
    }

    /// Takes segments away from a state, ends the recalls that this satisfies, and drops the state if no segment is
    /// left.
    fn give_back(&mut self, other: &[u8; 12], filter: Filter) -> Vec<(Iomode, ByteRange)> {
        let Some(state) = self.by_other.get_mut(other) else { return Vec::new() };
        let pieces = state.segments.take(filter);
        let segments = &state.segments;
        let (kept, ended): (Vec<_>, Vec<_>) = state.pending.drain(..).partition(|p| segments.any(p.filter));
        state.pending = kept;
        let empty = state.segments.is_empty();
        for pending in ended {
            self.recalls.remove(&pending.id);
        }
        if empty {
            self.remove(other);
        }
        pieces
    }
}

/// Checks the sequence number of a layout stateid: it is never 0, and any earlier number is valid, because clients send
/// requests in parallel (§12.5.5.2.1.4).
fn check_layout_seqid(asked: u32, current: u32) -> Result<()> {
    if asked == 0 || (asked.wrapping_sub(current) as i32) > 0 { Err(NFS4ERR_BAD_STATEID) } else { Ok(()) }
}

impl State {
    /// Checks whether the server may grant `client` a layout now. Call it before asking the file system for one.
    ///
    /// `stateid` is the stateid of an open of the file, of locks under one, of a delegation, or of layouts that the
    /// client holds.
    ///
    /// # Errors
    /// BAD_STATEID, OLD_STATEID, DELEG_REVOKED, OPENMODE (writing, with an open for reading), LAYOUTUNAVAILABLE (the
    /// client accepts no callbacks, so the server could not recall), RECALLCONFLICT and RETURNCONFLICT (a recall is in
    /// progress), LAYOUTTRYLATER (too many layouts held, or no connection for callbacks), ADMIN_REVOKED.
    pub fn check_layoutget(
        &self,
        client: ClientId,
        file: FileId,
        kind: layouttype4,
        stateid: &stateid4,
        filter: Filter,
    ) -> Result<()> {
        let state = match stateids::form(stateid, self.config.boot_epoch)? {
            Form::Ordinary(of @ (Kind::Open | Kind::Lock)) => {
                let open = match of {
                    Kind::Lock => self.open_of_lock(client, file, stateid)?,
                    _ => *stateid,
                };
                let open = self.find_open(client, file, &open)?;
                if filter.iomode == Some(Iomode::ReadWrite) && open.access & OPEN4_SHARE_ACCESS_WRITE == 0 {
                    return Err(NFS4ERR_OPENMODE);
                }
                self.live_layout(client, file, kind)
            }
            Form::Ordinary(Kind::Delegation) => {
                let power = self.find_delegation(client, file, stateid)?;
                if filter.iomode == Some(Iomode::ReadWrite) && power == Power::Read {
                    return Err(NFS4ERR_OPENMODE);
                }
                self.live_layout(client, file, kind)
            }
            Form::Ordinary(Kind::Layout) => Some(self.find_layout(client, file, kind, stateid)?),
            _ => return Err(NFS4ERR_BAD_STATEID),
        };
        if !self.has_backchannel(client) {
            return Err(if self.wants_backchannel(client) {
                NFS4ERR_LAYOUTTRYLATER
            } else {
                NFS4ERR_LAYOUTUNAVAILABLE
            });
        }
        if self.layouts.frozen.contains_key(&file) {
            return Err(NFS4ERR_RECALLCONFLICT);
        }
        let Some(state) = state else {
            let all = (self.layouts.len(), limits::LAYOUTS_MAX);
            let full = self.layouts.of_client(client) >= limits::LAYOUTS_PER_CLIENT_MAX
                || self.is_share_full(client, |id| self.layouts.of_client(id), all);
            return if full { Err(NFS4ERR_LAYOUTTRYLATER) } else { Ok(()) };
        };
        if let Some(pending) = state.pending.iter().find(|p| p.filter.overlaps(filter)) {
            let returning = pending.answered && stateid.seqid == pending.seqid;
            return Err(if returning { NFS4ERR_RETURNCONFLICT } else { NFS4ERR_RECALLCONFLICT });
        }
        if state.segments.len() >= SEGMENTS_MAX { Err(NFS4ERR_LAYOUTTRYLATER) } else { Ok(()) }
    }

    /// Records a granted layout and returns its stateid (`logr_stateid`).
    ///
    /// # Errors
    /// The errors of [`State::check_layoutget`], which runs again, because the state may have changed while the layout
    /// was made.
    pub fn grant_layout(
        &mut self,
        client: ClientId,
        file: FileId,
        kind: layouttype4,
        stateid: &stateid4,
        segment: Segment,
    ) -> Result<stateid4> {
        let filter = Filter { iomode: Some(segment.iomode), range: segment.range };
        self.check_layoutget(client, file, kind, stateid, filter)?;
        let key = (client, file, kind);
        if let Some(other) = self.layouts.by_key.get(&key).copied() {
            match self.layouts.by_other.get_mut(&other) {
                Some(state) if state.revoked.is_none() => {
                    state.segments.add(segment);
                    state.seqid = stateids::next_seqid(state.seqid);
                    state.granted = state.seqid;
                    return Ok(stateid4 { seqid: state.seqid, other });
                }
                // The client starts again with an open stateid, so it knows that the old layout is gone.
                _ => self.layouts.remove(&other),
            };
        }
        let other = self.new_other(Kind::Layout);
        let mut segments = Segments::default();
        segments.add(segment);
        self.layouts.add(
            other,
            LayoutState { client, file, kind, seqid: 1, granted: 1, segments, pending: Vec::new(), revoked: None },
        );
        Ok(stateid4 { seqid: 1, other })
    }

    /// Returns the layouts that a client has of a file, unless they are revoked.
    fn live_layout(&self, client: ClientId, file: FileId, kind: layouttype4) -> Option<&LayoutState> {
        let other = self.layouts.by_key.get(&(client, file, kind))?;
        self.layouts.by_other.get(other).filter(|s| s.revoked.is_none())
    }

    fn find_layout(
        &self,
        client: ClientId,
        file: FileId,
        kind: layouttype4,
        stateid: &stateid4,
    ) -> Result<&LayoutState> {
        let state = self.layouts.get(client, stateid)?;
        if state.file != file || state.kind != kind {
            return Err(NFS4ERR_BAD_STATEID);
        }
        if state.revoked.is_some() {
            return Err(NFS4ERR_ADMIN_REVOKED);
        }
        check_layout_seqid(stateid.seqid, state.seqid)?;
        Ok(state)
    }

    /// Checks whether a client has layouts of a file under this stateid, of any type.
    ///
    /// # Errors
    /// BAD_STATEID, ADMIN_REVOKED.
    pub fn check_layout(&self, client: ClientId, file: FileId, stateid: &stateid4) -> Result<()> {
        match stateids::form(stateid, self.config.boot_epoch)? {
            Form::Ordinary(Kind::Layout) => {}
            _ => return Err(NFS4ERR_BAD_STATEID),
        }
        let kind = self.layouts.get(client, stateid)?.kind;
        self.find_layout(client, file, kind, stateid).map(|_| ())
    }

    /// Checks whether LAYOUTCOMMIT of this range may proceed: the client must hold part of the range for writing
    /// (§18.42.3).
    ///
    /// Every layout for writing contains the empty range; Linux sends one with only a new time.
    ///
    /// # Errors
    /// BAD_STATEID, ADMIN_REVOKED, BADLAYOUT.
    pub fn check_layoutcommit(
        &self,
        client: ClientId,
        file: FileId,
        kind: layouttype4,
        stateid: &stateid4,
        range: ByteRange,
    ) -> Result<()> {
        match stateids::form(stateid, self.config.boot_epoch)? {
            Form::Ordinary(Kind::Layout) => {}
            _ => return Err(NFS4ERR_BAD_STATEID),
        }
        let state = self.find_layout(client, file, kind, stateid)?;
        let range = if range.is_empty() { ByteRange::ALL } else { range };
        let held = state.segments.any(Filter { iomode: Some(Iomode::ReadWrite), range });
        if held { Ok(()) } else { Err(NFS4ERR_BADLAYOUT) }
    }

    /// Checks whether LAYOUTCOMMIT may proceed for a layout from before the restart (`loca_reclaim`, §12.7.4,
    /// §18.42.3).
    ///
    /// # Errors
    /// The errors of a reclaim in [`State::check_grace`]; RECLAIM_BAD (not a layout stateid from an earlier start).
    pub fn check_layout_reclaim(&self, client: ClientId, stateid: &stateid4) -> Result<()> {
        self.check_grace(client, true)?;
        let earlier = stateids::boot_epoch(stateid) < self.config.boot_epoch;
        if stateids::is_of_layout(stateid) && earlier { Ok(()) } else { Err(NFS4ERR_RECLAIM_BAD) }
    }

    /// LAYOUTRETURN of type FILE (§18.44). Returning a layout that the client does not hold is no error.
    ///
    /// A client does not return layouts while a LAYOUTGET is outstanding: it would lose the new layout without knowing
    /// it.
    ///
    /// # Errors
    /// BAD_STATEID, OLD_STATEID (a LAYOUTGET came between). A revoked layout can be returned: this shows that the
    /// client knows of the revocation, and removes the layout.
    pub fn return_layout(
        &mut self,
        client: ClientId,
        file: FileId,
        kind: layouttype4,
        stateid: &stateid4,
        filter: Filter,
    ) -> Result<ReturnedLayout> {
        match stateids::form(stateid, self.config.boot_epoch)? {
            Form::Ordinary(Kind::Layout) => {}
            _ => return Err(NFS4ERR_BAD_STATEID),
        }
        match self.find_layout(client, file, kind, stateid) {
            Err(NFS4ERR_ADMIN_REVOKED) => {
                self.layouts.remove(&stateid.other);
                return Ok(ReturnedLayout { stateid: None, pieces: Vec::new() });
            }
            found => {
                if (stateid.seqid.wrapping_sub(found?.granted) as i32) < 0 {
                    return Err(NFS4ERR_OLD_STATEID);
                }
            }
        };
        let pieces = self.layouts.give_back(&stateid.other, filter);
        let stateid = self.layouts.by_other.get_mut(&stateid.other).map(|state| {
            state.seqid = stateids::next_seqid(state.seqid);
            stateid4 { seqid: state.seqid, other: stateid.other }
        });
        Ok(ReturnedLayout { stateid, pieces })
    }

    /// LAYOUTRETURN of type FSID or ALL, which are equal because there is one file system: returns all layouts of one
    /// type and use. Never fails; returns the layouts that the client held.
    pub fn return_all_layouts(
        &mut self,
        client: ClientId,
        kind: layouttype4,
        iomode: Option<Iomode>,
    ) -> Vec<(FileId, Iomode, ByteRange)> {
        let filter = Filter { iomode, range: ByteRange::ALL };
        let mut returned = Vec::new();
        for other in self.layouts.by_client.get(&client).cloned().unwrap_or_default() {
            let Some(state) = self.layouts.by_other.get(&other).filter(|s| s.kind == kind) else { continue };
            let file = state.file;
            returned.extend(self.layouts.give_back(&other, filter).into_iter().map(|(i, r)| (file, i, r)));
        }
        returned
    }

    /// Begins to recall the layouts that overlap `filter` from all clients but `except`; they must return them within
    /// one lease period.
    ///
    /// Returns the callbacks to send. A recall in progress that covers the same layouts is not sent twice. The caller
    /// waits until [`State::conflicting_layouts`] is false, and may [`State::freeze_layouts`] meanwhile.
    pub fn recall_layouts(
        &mut self,
        file: FileId,
        filter: Filter,
        except: Option<ClientId>,
        now: Timestamp,
    ) -> Vec<Recall> {
        self.recall_wanted(file, filter, |s| Some(s.client) != except, now)
    }

    /// Begins to recall all layouts of one type of a file; clients must return them within one lease period. No request
    /// waits for this.
    pub fn recall_kind(&mut self, file: FileId, kind: layouttype4, now: Timestamp) -> Vec<Recall> {
        self.recall_wanted(file, Filter::ALL, |s| s.kind == kind, now)
    }

    fn recall_wanted(
        &mut self,
        file: FileId,
        filter: Filter,
        wanted: impl Fn(&LayoutState) -> bool,
        now: Timestamp,
    ) -> Vec<Recall> {
        let deadline = now.after(self.config.lease);
        let wanted = |s: &LayoutState| wanted(s) && s.segments.any(filter);
        let others: Vec<_> = self.layouts.states_on(file).filter(|(_, s)| wanted(s)).map(|(o, _)| *o).collect();
        let mut recalls = Vec::new();
        for other in others {
            let id = RecallId(self.layouts.next_recall);
            let Some(state) = self.layouts.by_other.get_mut(&other) else { continue };
            if state.pending.iter().any(|p| p.filter.covers(filter)) {
                continue;
            }
            self.layouts.next_recall += 1;
            state.seqid = stateids::next_seqid(state.seqid);
            let (seqid, client, kind) = (state.seqid, state.client, state.kind);
            state.pending.push(Pending { id, filter, seqid, deadline, answered: false });
            self.layouts.recalls.insert(id, other);
            let stateid = stateid4 { seqid, other };
            let Filter { iomode, range } = filter;
            recalls.push(Recall { id, client, file, kind, iomode, range, stateid });
        }
        recalls
    }

    /// Returns the files with layouts and the layout types, in order.
    pub fn files_with_layouts(&self) -> BTreeSet<(FileId, layouttype4)> {
        self.layouts.by_key.keys().map(|(_, file, kind)| (*file, *kind)).collect()
    }

    /// Returns whether a recall is still in progress.
    pub fn is_recalling(&self, id: RecallId) -> bool {
        self.layouts.recalls.contains_key(&id)
    }

    /// Processes a client's answer to a recall.
    pub fn recall_answered(&mut self, id: RecallId, answer: RecallAnswer) {
        let Some(other) = self.layouts.recalls.get(&id).copied() else { return };
        let Some(state) = self.layouts.by_other.get_mut(&other) else { return };
        let Some(pending) = state.pending.iter_mut().find(|p| p.id == id) else { return };
        match answer {
            RecallAnswer::WillReturn => pending.answered = true,
            RecallAnswer::Later => {}
            RecallAnswer::NothingHeld => {
                let filter = pending.filter;
                self.lose(&other, filter, Gone::Forgotten);
            }
        }
    }

    /// Returns whether a client other than `except` still holds a layout that overlaps `filter`.
    pub fn conflicting_layouts(&self, file: FileId, filter: Filter, except: Option<ClientId>) -> bool {
        self.layouts.states_on(file).any(|(_, s)| Some(s.client) != except && s.segments.any(filter))
    }

    /// Stops grants of layouts of a file (RECALLCONFLICT) until [`State::thaw_layouts`]; calls nest.
    pub fn freeze_layouts(&mut self, file: FileId) {
        *self.layouts.frozen.entry(file).or_default() += 1;
    }

    /// Undoes one [`State::freeze_layouts`].
    pub fn thaw_layouts(&mut self, file: FileId) {
        if let Some(count) = self.layouts.frozen.get_mut(&file) {
            *count -= 1;
            if *count == 0 {
                self.layouts.frozen.remove(&file);
            }
        }
    }

    /// Returns the clients that hold layouts of a file.
    pub fn layout_holders(&self, file: FileId) -> Vec<Holder> {
        let segments = |s: &LayoutState| s.segments.iter().map(move |g| (g.iomode, g.range)).collect::<Vec<_>>();
        self.layouts
            .states_on(file)
            .flat_map(|(_, s)| {
                segments(s).into_iter().map(|(iomode, range)| Holder { client: s.client, iomode, range })
            })
            .collect()
    }

    /// Revokes all layouts of `client` for a file, recalled or not; the caller must fence the client
    /// ([`Effect::LayoutGone`]).
    pub fn revoke_layouts(&mut self, client: ClientId, file: FileId, now: Timestamp) {
        let others: Vec<_> =
            self.layouts.states_on(file).filter(|(_, s)| s.client == client).map(|(o, _)| *o).collect();
        for other in others {
            self.revoke(&other, now);
        }
    }

    fn revoke(&mut self, other: &[u8; 12], now: Timestamp) {
        let Some(state) = self.layouts.by_other.get_mut(other) else { return };
        let (client, file) = (state.client, state.file);
        let pieces = state.segments.take(Filter::ALL);
        if state.revoked.replace(now).is_none() {
            *self.layouts.revoked.entry(client).or_default() += 1;
        }
        for pending in state.pending.drain(..) {
            self.layouts.recalls.remove(&pending.id);
        }
        self.layout_effects(client, file, pieces, Gone::Revoked);
    }

    /// Takes segments from a state without a LAYOUTRETURN.
    fn lose(&mut self, other: &[u8; 12], filter: Filter, why: Gone) {
        let Some(state) = self.layouts.by_other.get(other) else { return };
        let (client, file) = (state.client, state.file);
        let pieces = self.layouts.give_back(other, filter);
        self.layout_effects(client, file, pieces, why);
    }

    fn layout_effects(&mut self, client: ClientId, file: FileId, pieces: Vec<(Iomode, ByteRange)>, why: Gone) {
        let gone = |(iomode, range)| Effect::LayoutGone { client, file, iomode, range, why };
        self.effects.extend(pieces.into_iter().map(gone));
    }

    /// Drops the return-on-close layouts when `client` closes `file` for the last time.
    pub(crate) fn drop_return_on_close(&mut self, client: ClientId, file: FileId) {
        let others: Vec<_> =
            self.layouts.states_on(file).filter(|(_, s)| s.client == client).map(|(o, _)| *o).collect();
        for other in others {
            let Some(state) = self.layouts.by_other.get(&other) else { continue };
            let ranges: Vec<_> = state.segments.iter().filter(|s| s.return_on_close).copied().collect();
            for segment in ranges {
                let filter = Filter { iomode: Some(segment.iomode), range: segment.range };
                self.lose(&other, filter, Gone::Forgotten);
            }
        }
    }

    /// Returns whether a client has a layout of the file.
    pub(crate) fn has_layouts(&self, file: FileId) -> bool {
        self.layouts.by_file.contains_key(&file)
    }

    /// Drops all layouts of a file that is about to be freed. The server does not recall them, because there is nothing
    /// left to write to.
    pub(crate) fn forget_layouts(&mut self, file: FileId) {
        for other in self.layouts.by_file.get(&file).cloned().unwrap_or_default() {
            self.lose(&other, Filter::ALL, Gone::Forgotten);
            self.layouts.remove(&other);
        }
    }

    /// Drops the layouts of a client for one file.
    pub(crate) fn drop_layouts_of(&mut self, client: ClientId, file: FileId, why: Gone) {
        let others: Vec<_> =
            self.layouts.states_on(file).filter(|(_, s)| s.client == client).map(|(o, _)| *o).collect();
        for other in others {
            self.lose(&other, Filter::ALL, why);
            self.layouts.remove(&other);
        }
    }

    /// Revokes layouts of lapsed clients that overlap `filter`: no request waits for their return.
    pub fn revoke_lapsed_layouts(&mut self, file: FileId, filter: Filter, except: Option<ClientId>, now: Timestamp) {
        let wanted = |s: &LayoutState| Some(s.client) != except && s.segments.any(filter) && self.is_lapsed(s.client);
        let others: Vec<_> = self.layouts.states_on(file).filter(|(_, s)| wanted(s)).map(|(o, _)| *o).collect();
        for other in others {
            self.revoke(&other, now);
        }
    }

    /// Drops all layouts of a client.
    pub(crate) fn drop_layouts(&mut self, client: ClientId, why: Gone) {
        for other in self.layouts.by_client.get(&client).cloned().unwrap_or_default() {
            self.lose(&other, Filter::ALL, why);
            self.layouts.remove(&other);
        }
    }

    /// Revokes layouts that were recalled a lease period ago and not returned, and drops entries revoked a lease period
    /// ago.
    ///
    /// FREE_STATEID is the proper end of a revoked state (§18.38), but Linux never frees layout stateids. Without this
    /// limit every reply would report the loss forever, and Linux would drop all its layouts each time.
    pub(crate) fn expire_recalls(&mut self, now: Timestamp) {
        let mut late = Vec::new();
        let mut old = Vec::new();
        for (other, state) in &self.layouts.by_other {
            if state.pending.iter().any(|p| p.deadline <= now) {
                late.push(*other);
            } else if state.revoked.is_some_and(|since| now.since(since) > self.config.lease)
                && !self.is_lapsed(state.client)
            {
                old.push(*other);
            }
        }
        late.sort_unstable();
        for other in late {
            self.revoke(&other, now);
        }
        for other in old {
            self.layouts.remove(&other);
        }
    }
}
