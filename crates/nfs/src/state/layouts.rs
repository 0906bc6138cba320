//! Layouts: who holds which bytes of which file for which use, and how they come back (RFC 8881 §12.5, §18.42 to §18.44).

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

/// Most separate pieces that one client may hold of one file.
const SEGMENTS_MAX: usize = 32;

/// A recall that waits for its LAYOUTRETURN.
#[derive(Clone, Debug)]
struct Pending {
    id: RecallId,
    filter: Filter,
    /// Sequence number in the recall's stateid.
    seqid: u32,
    /// When the layout is revoked.
    deadline: Timestamp,
    /// Whether the client has said that it will return the layout.
    answered: bool,
}

/// The layouts of one client, file and type, under one stateid (§12.5.3).
#[derive(Clone, Debug)]
struct LayoutState {
    client: ClientId,
    file: FileId,
    kind: layouttype4,
    seqid: u32,
    /// That of the last LAYOUTGET.
    granted: u32,
    segments: Segments,
    pending: Vec<Pending>,
    /// When it was taken away; kept until the client shows that it knows.
    revoked: Option<Timestamp>,
}

/// Names one recall.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct RecallId(pub u64);

/// A CB_LAYOUTRECALL of type FILE to be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Recall {
    /// Names it in [`State::recall_answered`].
    pub id: RecallId,
    /// To whom.
    pub client: ClientId,
    /// `lor_fh`.
    pub file: FileId,
    /// `clora_type`.
    pub kind: layouttype4,
    /// `clora_iomode`: `None` is ANY.
    pub iomode: Option<Iomode>,
    /// `lor_offset` and `lor_length`.
    pub range: ByteRange,
    /// `lor_stateid`, its sequence number one above the last that the client was told.
    pub stateid: stateid4,
}

/// What a client said to a recall.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RecallAnswer {
    /// NFS4_OK: a LAYOUTRETURN will follow.
    WillReturn,
    /// NFS4ERR_NOMATCHING_LAYOUT: it holds nothing there; no LAYOUTRETURN follows.
    NothingHeld,
    /// NFS4ERR_DELAY or no answer: ask again with the same [`Recall`].
    Later,
}

/// What LAYOUTRETURN of one file did.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReturnedLayout {
    /// `lorr_stateid`; `None` when nothing is held any more.
    pub stateid: Option<stateid4>,
    /// The pieces that were held and are not any more.
    pub pieces: Vec<(Iomode, ByteRange)>,
}

/// Somebody who holds a layout.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Holder {
    /// Who.
    pub client: ClientId,
    /// For which use.
    pub iomode: Iomode,
    /// Which bytes.
    pub range: ByteRange,
}

/// All layouts.
#[derive(Clone, Debug, Default)]
pub struct Layouts {
    by_other: HashMap<[u8; 12], LayoutState>,
    by_key: HashMap<(ClientId, FileId, layouttype4), [u8; 12]>,
    by_file: HashMap<FileId, BTreeSet<[u8; 12]>>,
    by_client: HashMap<ClientId, BTreeSet<[u8; 12]>>,
    /// How many revoked states each client has not yet given up: every SEQUENCE asks.
    revoked: HashMap<ClientId, usize>,
    /// Files of which no layout is given for the moment, with the number of those who asked for that.
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

    /// Takes pieces away from a state, ends the recalls that are satisfied, and forgets the state when nothing is left.
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

/// The sequence number of a layout stateid: never 0, and any earlier one is accepted, for requests run in parallel
/// (§12.5.5.2.1.4).
fn check_layout_seqid(asked: u32, current: u32) -> Result<()> {
    if asked == 0 || (asked.wrapping_sub(current) as i32) > 0 { Err(NFS4ERR_BAD_STATEID) } else { Ok(()) }
}

impl State {
    /// Whether `client` may be given a layout now: call it before asking the file system for one.
    ///
    /// `stateid` is that of an open of the file, of locks under one, of a delegation, or of the layouts already held.
    ///
    /// # Errors
    /// BAD_STATEID, OLD_STATEID, DELEG_REVOKED, OPENMODE (writing, by an open for reading), LAYOUTUNAVAILABLE (the client takes no
    /// callbacks, so that nothing could be recalled), RECALLCONFLICT and RETURNCONFLICT (a recall is going on),
    /// LAYOUTTRYLATER (too many layouts held, or no connection for callbacks), ADMIN_REVOKED.
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

    /// Records a layout given and returns its stateid (`logr_stateid`).
    ///
    /// # Errors
    /// Those of [`State::check_layoutget`], which is done again: much may have happened while the layout was made.
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
                // The client begins anew with an open stateid, so it knows that the old layout is gone.
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

    /// The layouts that a client has of a file, if they were not taken away.
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

    /// Whether a client has layouts of a file under this stateid, of whatever type.
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

    /// Whether LAYOUTCOMMIT of this range may go ahead: the client must hold part of it for writing (§18.42.3).
    ///
    /// An empty range (Linux sends one with only a new time) is in every layout for writing.
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

    /// Whether LAYOUTCOMMIT may go ahead for a layout of before the restart (`loca_reclaim`, §12.7.4, §18.42.3).
    ///
    /// # Errors
    /// Those of a reclaim in [`State::check_grace`]; RECLAIM_BAD (no stateid of layouts that an earlier start gave out).
    pub fn check_layout_reclaim(&self, client: ClientId, stateid: &stateid4) -> Result<()> {
        self.check_grace(client, true)?;
        let earlier = stateids::boot_epoch(stateid) < self.config.boot_epoch;
        if stateids::is_of_layout(stateid) && earlier { Ok(()) } else { Err(NFS4ERR_RECLAIM_BAD) }
    }

    /// LAYOUTRETURN of type FILE (§18.44). Returning what is not held is no error.
    ///
    /// A client does not return layouts while it waits for more: what it has not seen yet would be lost without its knowing.
    ///
    /// # Errors
    /// BAD_STATEID, OLD_STATEID (a LAYOUTGET came between). A revoked layout can be returned: that shows that the client
    /// knows, and forgets it.
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

    /// LAYOUTRETURN of type FSID or ALL, which are the same as long as there is one file system: everything of one type
    /// and use. Never fails; returns what was held.
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

    /// Begins to recall what overlaps `filter` from everybody but `except`, to be returned within one lease.
    ///
    /// Returns the callbacks to send. Recalls under way that cover the same are not sent twice. The caller waits until
    /// [`State::conflicting_layouts`] is false, and may [`State::freeze_layouts`] meanwhile.
    pub fn recall_layouts(
        &mut self,
        file: FileId,
        filter: Filter,
        except: Option<ClientId>,
        now: Timestamp,
    ) -> Vec<Recall> {
        self.recall_wanted(file, filter, |s| Some(s.client) != except, now)
    }

    /// Begins to recall all layouts of one type of a file, to be returned within one lease. Nobody waits for that.
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

    /// The files of which anybody holds a layout, with its type, in their order.
    pub fn files_with_layouts(&self) -> BTreeSet<(FileId, layouttype4)> {
        self.layouts.by_key.keys().map(|(_, file, kind)| (*file, *kind)).collect()
    }

    /// Whether a recall is neither satisfied nor over.
    pub fn is_recalling(&self, id: RecallId) -> bool {
        self.layouts.recalls.contains_key(&id)
    }

    /// Takes in what a client said to a recall.
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

    /// Whether anybody but `except` still holds a layout that overlaps `filter`.
    pub fn conflicting_layouts(&self, file: FileId, filter: Filter, except: Option<ClientId>) -> bool {
        self.layouts.states_on(file).any(|(_, s)| Some(s.client) != except && s.segments.any(filter))
    }

    /// Gives no new layout of a file (RECALLCONFLICT) until [`State::thaw_layouts`]; calls nest.
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

    /// Who holds layouts of a file.
    pub fn layout_holders(&self, file: FileId) -> Vec<Holder> {
        let segments = |s: &LayoutState| s.segments.iter().map(move |g| (g.iomode, g.range)).collect::<Vec<_>>();
        self.layouts
            .states_on(file)
            .flat_map(|(_, s)| {
                segments(s).into_iter().map(|(iomode, range)| Holder { client: s.client, iomode, range })
            })
            .collect()
    }

    /// Takes away what `client` holds of a file, whether recalled or not; the client must be fenced
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

    /// Takes pieces from a state without a LAYOUTRETURN.
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

    /// Drops the layouts that were to be returned when `client` closes `file` for the last time.
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

    /// Whether anybody has a layout of the file.
    pub(crate) fn has_layouts(&self, file: FileId) -> bool {
        self.layouts.by_file.contains_key(&file)
    }

    /// Drops all layouts of a file that is about to be freed: nobody is asked, for there will be nothing to write to.
    pub(crate) fn forget_layouts(&mut self, file: FileId) {
        for other in self.layouts.by_file.get(&file).cloned().unwrap_or_default() {
            self.lose(&other, Filter::ALL, Gone::Forgotten);
            self.layouts.remove(&other);
        }
    }

    /// Drops the layouts that a client holds of one file.
    pub(crate) fn drop_layouts_of(&mut self, client: ClientId, file: FileId, why: Gone) {
        let others: Vec<_> =
            self.layouts.states_on(file).filter(|(_, s)| s.client == client).map(|(o, _)| *o).collect();
        for other in others {
            self.lose(&other, Filter::ALL, why);
            self.layouts.remove(&other);
        }
    }

    /// Takes away what lapsed clients hold of a file that overlaps `filter`: nobody waits for them to return it.
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

    /// Revokes what was recalled a lease ago and not returned, and forgets what was revoked a lease ago.
    ///
    /// FREE_STATEID is the proper end of a revoked state (§18.38), but Linux never frees layout stateids and would be
    /// told of the loss, and drop all its layouts, with every reply for ever.
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
