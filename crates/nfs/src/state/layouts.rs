//! Layout state of the server: which client holds layouts of which byte ranges of a file, and their return (RFC 8881
//! §12.5, §18.42 to §18.44).

mod segments;

use crate::fs::Iomode;
use crate::state::delegations::DelegationKind;
use crate::state::stateids::{self, Form, Kind};
use crate::state::{ClientId, Effect, Gone, Result, State};
use segments::Segments;
pub use segments::{Filter, Segment};
use std::collections::{BTreeSet, HashMap};
use types::{ByteRange, FileId, Timestamp, limits};
use wire::nfs4::nfsstat4::*;
use wire::nfs4::{OPEN4_SHARE_ACCESS_WRITE, layouttype4, stateid4};

/// The largest number of separate segments in one client's layout of a file.
const SEGMENTS_MAX: usize = 32;

/// A layout recall whose LAYOUTRETURN the server still waits for.
#[derive(Clone, Debug)]
struct Pending {
    id: RecallId,
    filter: Filter,
    /// The sequence number of the layout stateid in the CB_LAYOUTRECALL.
    seqid: u32,
    /// The time until which the client may return the layout; after this time the server revokes the layout.
    deadline: Timestamp,
    /// Whether the client answered the recall with NFS4_OK, and will therefore send LAYOUTRETURN.
    answered: bool,
}

/// The layout state of one client, file and layout type, under one stateid (§12.5.3).
#[derive(Clone, Debug)]
struct LayoutState {
    client: ClientId,
    file: FileId,
    kind: layouttype4,
    seqid: u32,
    /// The sequence number of the stateid in the last LAYOUTGET reply.
    granted: u32,
    segments: Segments,
    pending: Vec<Pending>,
    /// When the server revoked the layout. The entry stays until the client frees, returns or replaces the layout, or
    /// until one lease period has passed.
    revoked: Option<Timestamp>,
}

/// The id of one layout recall.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct RecallId(pub u64);

/// The arguments of a CB_LAYOUTRECALL of type FILE.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Recall {
    /// The id of the recall, for [`State::recall_answered`].
    pub id: RecallId,
    /// The client that holds the layout.
    pub client: ClientId,
    /// The file whose layout the server recalls (`lor_fh`).
    pub file: FileId,
    /// The layout type (`clora_type`).
    pub kind: layouttype4,
    /// The iomode (`clora_iomode`); `None` is LAYOUTIOMODE4_ANY.
    pub iomode: Option<Iomode>,
    /// The byte range (`lor_offset` and `lor_length`).
    pub range: ByteRange,
    /// The layout stateid (`lor_stateid`). Its sequence number is one above the last sequence number that the server
    /// sent to the client.
    pub stateid: stateid4,
}

/// A client's answer to CB_LAYOUTRECALL.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RecallAnswer {
    /// NFS4_OK: the client will send LAYOUTRETURN.
    WillReturn,
    /// NFS4ERR_NOMATCHING_LAYOUT: the client holds no such layout and will not send LAYOUTRETURN.
    NothingHeld,
    /// NFS4ERR_DELAY, another error, or no answer: the server must send the same [`Recall`] again.
    Later,
}

/// The result of LAYOUTRETURN for one file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReturnedLayout {
    /// The layout stateid of the remaining layout (`lorr_stateid`); `None` if nothing remains.
    pub stateid: Option<stateid4>,
    /// The iomodes and byte ranges that LAYOUTRETURN removed from the layout.
    pub pieces: Vec<(Iomode, ByteRange)>,
}

/// A segment of a layout of a file, with the client that holds the layout.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Holder {
    /// The client that holds the layout.
    pub client: ClientId,
    /// The iomode of the segment.
    pub iomode: Iomode,
    /// The byte range of the segment.
    pub range: ByteRange,
}

/// All layouts of the server.
#[derive(Clone, Debug, Default)]
pub struct Layouts {
    by_other: HashMap<[u8; 12], LayoutState>,
    by_key: HashMap<(ClientId, FileId, layouttype4), [u8; 12]>,
    by_file: HashMap<FileId, BTreeSet<[u8; 12]>>,
    by_client: HashMap<ClientId, BTreeSet<[u8; 12]>>,
    /// Number of revoked layout states of each client. Every SEQUENCE reads this number for its status flags.
    revoked: HashMap<ClientId, usize>,
    /// Files for which the server grants no layout for now, each with the number of [`State::freeze_layouts`] in
    /// effect.
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

    /// Removes the segments that `filter` selects from a layout state, and ends the recalls that no remaining segment
    /// matches. Removes the layout state when no segment remains.
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

/// Checks the sequence number of a layout stateid. A sequence number of 0 is an error. Every sequence number up to
/// the current one is valid, because clients send requests in parallel (§12.5.5.2.1.4).
fn check_layout_seqid(asked: u32, current: u32) -> Result<()> {
    if asked == 0 || (asked.wrapping_sub(current) as i32) > 0 { Err(NFS4ERR_BAD_STATEID) } else { Ok(()) }
}

impl State {
    /// Checks whether the server may grant `client` a layout. Call this before the file system makes the layout.
    ///
    /// `stateid` belongs to an open of the file, to locks under such an open, to a delegation, or to a layout that the
    /// client holds.
    ///
    /// # Errors
    /// BAD_STATEID, OLD_STATEID, DELEG_REVOKED, ADMIN_REVOKED. OPENMODE: a layout for writing needs an open for
    /// writing. LAYOUTUNAVAILABLE: the client has no backchannel, so the server could not recall the layout.
    /// RECALLCONFLICT, RETURNCONFLICT: a recall is in progress. LAYOUTTRYLATER: the client holds too many layouts, or
    /// its backchannel has no connection.
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
                let held = self.find_delegation(client, file, stateid)?;
                if filter.iomode == Some(Iomode::ReadWrite) && held == DelegationKind::Read {
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
    /// The errors of [`State::check_layoutget`]. The call repeats the check, because the state tables may have changed
    /// while the file system made the layout.
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
                // The server has revoked this layout, and the client requests a layout with another stateid (an open,
                // lock or delegation stateid). So the client knows of the revocation. Remove the revoked layout state.
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

    /// Returns a client's layout state of a file and layout type, unless the layout is revoked.
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

    /// Checks whether `stateid` is a valid layout stateid of this client and file, of any layout type.
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

    /// Checks whether a client may send LAYOUTCOMMIT for this range: it must hold a layout for writing that overlaps
    /// the range (§18.42.3).
    ///
    /// For an empty range, any layout for writing suffices. Linux sends an empty range when it changes only the
    /// modification time.
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

    /// Checks whether a client may send LAYOUTCOMMIT for a layout from before a restart of the server (`loca_reclaim`,
    /// §12.7.4, §18.42.3).
    ///
    /// # Errors
    /// The errors of a reclaim in [`State::check_grace`]. RECLAIM_BAD: the stateid is not a layout stateid
    /// from an earlier start of the server.
    pub fn check_layout_reclaim(&self, client: ClientId, stateid: &stateid4) -> Result<()> {
        self.check_grace(client, true)?;
        let earlier = stateids::boot_epoch(stateid) < self.config.boot_epoch;
        if stateids::is_of_layout(stateid) && earlier { Ok(()) } else { Err(NFS4ERR_RECLAIM_BAD) }
    }

    /// LAYOUTRETURN of type FILE (§18.44). The return of a layout that the client does not hold is no error. The return
    /// of a revoked layout removes the layout state, because the return shows that the client knows of the revocation.
    ///
    /// # Errors
    /// BAD_STATEID. OLD_STATEID: the server has granted a newer layout since it sent this stateid. The client may not
    /// know of the newer layout yet, so the return must not remove the newer layout.
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

    /// LAYOUTRETURN of type FSID or ALL, which have the same effect, because there is one file system. The client
    /// returns all its layouts of one type and iomode. The result lists the removed layouts, which the caller reports
    /// to the file system.
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

    /// Begins to recall the layouts that overlap `filter` from all clients except `except`. Each holder has one lease
    /// period to return its layout.
    ///
    /// Returns the recalls to send. The call begins no second recall of a layout if a recall of this layout in
    /// progress already covers `filter`. The caller waits until [`State::conflicting_layouts`] is false, and may stop
    /// new grants during the wait ([`State::freeze_layouts`]).
    pub fn recall_layouts(
        &mut self,
        file: FileId,
        filter: Filter,
        except: Option<ClientId>,
        now: Timestamp,
    ) -> Vec<Recall> {
        self.recall_wanted(file, filter, |s| Some(s.client) != except, now)
    }

    /// Begins to recall all layouts of one type of a file. Each holder has one lease period to return its layout. The
    /// server may grant new layouts during the recall.
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

    /// Returns all pairs of a file and a layout type for which a client has a layout state, in ascending order.
    pub fn files_with_layouts(&self) -> BTreeSet<(FileId, layouttype4)> {
        self.layouts.by_key.keys().map(|(_, file, kind)| (*file, *kind)).collect()
    }

    /// Returns whether the recall with this id is still in progress.
    pub fn is_recalling(&self, id: RecallId) -> bool {
        self.layouts.recalls.contains_key(&id)
    }

    /// Records a client's answer to a recall.
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

    /// Returns whether any client except `except` still holds a layout that overlaps `filter`.
    pub fn conflicting_layouts(&self, file: FileId, filter: Filter, except: Option<ClientId>) -> bool {
        self.layouts.states_on(file).any(|(_, s)| Some(s.client) != except && s.segments.any(filter))
    }

    /// Stops grants of layouts of a file (RECALLCONFLICT) until a matching [`State::thaw_layouts`]. Calls nest.
    pub fn freeze_layouts(&mut self, file: FileId) {
        *self.layouts.frozen.entry(file).or_default() += 1;
    }

    /// Ends one [`State::freeze_layouts`] of the file.
    pub fn thaw_layouts(&mut self, file: FileId) {
        if let Some(count) = self.layouts.frozen.get_mut(&file) {
            *count -= 1;
            if *count == 0 {
                self.layouts.frozen.remove(&file);
            }
        }
    }

    /// Returns all segments of layouts of a file, with their holders.
    pub fn layout_holders(&self, file: FileId) -> Vec<Holder> {
        let segments = |s: &LayoutState| s.segments.iter().map(move |g| (g.iomode, g.range)).collect::<Vec<_>>();
        self.layouts
            .states_on(file)
            .flat_map(|(_, s)| {
                segments(s).into_iter().map(|(iomode, range)| Holder { client: s.client, iomode, range })
            })
            .collect()
    }

    /// Revokes all layouts of `client` for a file, recalled or not. The caller must fence the client
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

    /// Removes segments from a layout state without a LAYOUTRETURN, and records an [`Effect::LayoutGone`] for each
    /// removed segment.
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

    /// Removes the segments with return-on-close, after the client's last CLOSE of the file.
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

    /// Returns whether any client has a layout of the file, revoked ones included.
    pub(crate) fn has_layouts(&self, file: FileId) -> bool {
        self.layouts.by_file.contains_key(&file)
    }

    /// Removes all layouts of a file that the server is about to free. No recall is needed, because the server deletes
    /// the objects of the file.
    pub(crate) fn forget_layouts(&mut self, file: FileId) {
        for other in self.layouts.by_file.get(&file).cloned().unwrap_or_default() {
            self.lose(&other, Filter::ALL, Gone::Forgotten);
            self.layouts.remove(&other);
        }
    }

    /// Removes the layouts of one client for one file; `why` says how the layouts end.
    pub(crate) fn drop_layouts_of(&mut self, client: ClientId, file: FileId, why: Gone) {
        let others: Vec<_> =
            self.layouts.states_on(file).filter(|(_, s)| s.client == client).map(|(o, _)| *o).collect();
        for other in others {
            self.lose(&other, Filter::ALL, why);
            self.layouts.remove(&other);
        }
    }

    /// Revokes the layouts that overlap `filter` and belong to clients with an expired lease, except the layouts of the
    /// client `except`.
    pub fn revoke_lapsed_layouts(&mut self, file: FileId, filter: Filter, except: Option<ClientId>, now: Timestamp) {
        let wanted = |s: &LayoutState| Some(s.client) != except && s.segments.any(filter) && self.is_lapsed(s.client);
        let others: Vec<_> = self.layouts.states_on(file).filter(|(_, s)| wanted(s)).map(|(o, _)| *o).collect();
        for other in others {
            self.revoke(&other, now);
        }
    }

    /// Removes all layouts of a client; `why` says how the layouts end.
    pub(crate) fn drop_layouts(&mut self, client: ClientId, why: Gone) {
        for other in self.layouts.by_client.get(&client).cloned().unwrap_or_default() {
            self.lose(&other, Filter::ALL, why);
            self.layouts.remove(&other);
        }
    }

    /// Revokes layouts whose recall is older than one lease period. Removes layout states that were revoked more than
    /// one lease period ago, except those of clients with an expired lease.
    ///
    /// The protocol expects FREE_STATEID for a revoked state (§18.38), but Linux sends none for layout stateids. While
    /// a revoked state exists, every SEQUENCE reply reports a revocation, and Linux discards all its layouts each time.
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
