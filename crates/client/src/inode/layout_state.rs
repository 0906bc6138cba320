//! The layout state of one open file: the layout that the client holds, requests for a layout, I/O under the layout,
//! and the recall that the client has yet to answer.
//!
//! A layout always covers the whole file. All layouts that the mgr grants for the file share one stateid, whose
//! sequence number grows, until the client returns the last layout or the mgr revokes it (RFC 8881 §12.5.3). The
//! sequence numbers order grants and recalls that arrive in another order than the mgr sent them.
//!
//! This module does no I/O and reads no clock: callers pass the time. The type `L` is the layout of a driver.

#[cfg(test)]
mod tests;

use layout::kinds::KindId;
use std::time::Duration;
use tokio::time::Instant;
use types::Generation;
use wire::nfs4::{layouttype4, stateid4};

/// The pause between attempts to replace a layout that expires soon.
const RENEW_PAUSE: Duration = Duration::from_secs(1);

/// A layout that the mgr granted.
#[derive(Clone, Debug)]
pub(super) struct Grant<L> {
    /// The layout that the driver created from the mgr's reply.
    pub(super) layout: L,
    /// The generation of the file when the mgr granted the layout; each fence increases the generation.
    pub(super) generation: Generation,
    pub(super) kind: KindId,
    pub(super) stateid: stateid4,
    /// Whether the layout allows writing.
    pub(super) write: bool,
    /// Whether the file was open for reading when the mgr granted the layout. If so, the layout allows reads.
    pub(super) read: bool,
    /// The number of the OPEN that requested the layout in the same COMPOUND; `None` if the client sent the LAYOUTGET
    /// without an OPEN.
    pub(super) open: Option<u64>,
}

/// The outcome of a layout grant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Granted {
    /// I/O may use the layout from now on.
    Usable {
        /// Whether the mgr kept the previous layout valid until this grant, without a break.
        continues: bool,
    },
    /// A recall of this layout arrived before the grant. The client holds the layout only to return it.
    Recalled,
    /// The client lost or returned an earlier layout after it had sent the request for this layout. So this layout may
    /// have been lost or returned together with the earlier layout. The client keeps this layout, but requests another
    /// layout before it does I/O.
    Doubtful,
    /// The mgr granted this layout before a layout that the client holds or has returned. The client ignores this
    /// layout.
    Outdated,
}

/// A layout recall from the mgr that the client has not answered yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Recall {
    /// The layout type in the recall.
    pub(super) kind: layouttype4,
    /// The stateid in the recall; its sequence number is above those of all recalled layouts.
    pub(super) stateid: stateid4,
}

/// Whether I/O may use the layout that the client holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Usability {
    /// I/O may use the layout.
    Usable,
    /// No I/O may use the layout, because the iods refuse it or the mgr may have revoked it. The client can still send
    /// size reports under the layout, and returns it on a recall.
    Unusable,
    /// No new I/O may use the layout. The client returns it when the last request under it has ended.
    Returning,
}

/// The state of the attempt to replace a layout that expires soon.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Renewal {
    /// A task is requesting the next layout.
    Running,
    /// The last LAYOUTGET failed. The client may send the next LAYOUTGET at this time.
    NotBefore(Instant),
}

/// The layout that the client holds.
#[derive(Clone, Debug)]
pub(super) struct Held<L> {
    grant: Grant<L>,
    /// The number of the layout, unique among all layouts of the file since its first open.
    number: u64,
    usability: Usability,
    /// Whether the mgr fenced the layout on request of this client.
    fenced: bool,
    /// The state of the attempt to replace this layout; `None` before the first attempt.
    renewal: Option<Renewal>,
}

/// A LAYOUTGET in flight.
#[derive(Clone, Copy, Debug)]
struct LayoutgetInFlight {
    /// Whether the client lost its layout after it had sent the LAYOUTGET.
    lost: bool,
}

/// The layout state of one open file.
#[derive(Clone, Debug)]
pub(super) struct LayoutState<L> {
    /// The layout that the client holds, until it returns or loses it.
    held: Option<Held<L>>,
    /// The LAYOUTGET in flight, if any. OPENs may request a layout at the same time.
    asked: Option<LayoutgetInFlight>,
    /// Number of layouts that the client has held for this file.
    grants: u64,
    /// Number of requests that use a layout, either the current one or an earlier one.
    uses: usize,
    /// The recall that the client has to answer with a LAYOUTRETURN.
    recall: Option<Recall>,
    /// The stateid of the layout that the client last returned. Layouts up to its sequence number are no longer valid.
    gone: Option<stateid4>,
    /// Number of OPENs that the client had sent when it last returned or lost a layout. The reply to one of these
    /// OPENs may grant a layout that is no longer valid.
    opens_before: u64,
    /// The layout kind to request, as an index into the client's order of preference. The mgr has refused all kinds
    /// before it.
    kind: usize,
    /// Whether the mgr has refused every layout kind. The client then requests no layout as long as the file stays
    /// open.
    refused: bool,
}

/// Returns whether sequence number `seqid` is after `other`, even if the sequence number has wrapped around.
fn is_after(seqid: u32, other: u32) -> bool {
    seqid.wrapping_sub(other) as i32 > 0
}

/// Returns the stateid with the later sequence number; `a` and `b` belong to the same layout.
fn later(a: stateid4, b: stateid4) -> stateid4 {
    if is_after(b.seqid, a.seqid) { b } else { a }
}

impl<L> Default for LayoutState<L> {
    fn default() -> Self {
        LayoutState {
            held: None,
            asked: None,
            grants: 0,
            uses: 0,
            recall: None,
            gone: None,
            opens_before: 0,
            kind: 0,
            refused: false,
        }
    }
}

impl<L> Held<L> {
    /// Returns the layout that the driver created.
    pub(super) fn layout(&self) -> &L {
        &self.grant.layout
    }

    /// Returns the kind of the layout.
    pub(super) fn kind(&self) -> KindId {
        self.grant.kind
    }

    /// Returns the stateid of the layout.
    pub(super) fn stateid(&self) -> stateid4 {
        self.grant.stateid
    }

    /// Returns whether a layout grant with this file generation shows that the mgr has kept this layout valid without a
    /// break.
    fn goes_on_as(&self, generation: Generation) -> bool {
        generation.0 == self.grant.generation.0 + u32::from(self.fenced)
    }
}

/// Requests for a layout, and their replies.
impl<L> LayoutState<L> {
    /// Returns whether the client should send a LAYOUTGET for the preferred layout kind, for opens with these access
    /// modes.
    pub(super) fn wants(&self, read: bool, write: bool) -> bool {
        let fits = |held: &Held<L>| {
            held.usability == Usability::Usable && (!write || held.grant.write) && (!read || held.grant.read)
        };
        !self.refused && self.kind == 0 && !self.held.as_ref().is_some_and(fits)
    }

    /// Returns whether the mgr has refused every kind of layout.
    pub(super) fn is_refused(&self) -> bool {
        self.refused
    }

    /// Returns which layout kind to request, as an index into the client's order of preference.
    pub(super) fn kind(&self) -> usize {
        self.kind
    }

    /// Records that the mgr refused a layout kind: the one at index `position` of the client's `count` kinds, in the
    /// order of preference.
    pub(super) fn refuse(&mut self, position: usize, count: usize) {
        if position + 1 < count {
            self.kind = self.kind.max(position + 1);
        } else {
            self.refused = true;
        }
    }

    /// Begins a LAYOUTGET; returns `false` if one is already in flight.
    pub(super) fn begin_asking(&mut self) -> bool {
        let begins = self.asked.is_none();
        self.asked = self.asked.or(Some(LayoutgetInFlight { lost: false }));
        begins
    }

    /// Ends the LAYOUTGET in flight. If the mgr granted a layout, the caller calls [`LayoutState::granted`] first.
    pub(super) fn end_asking(&mut self) {
        self.asked = None;
    }

    /// Records a layout that the mgr granted.
    pub(super) fn granted(&mut self, grant: Grant<L>) -> Granted {
        let stateid = grant.stateid;
        let is_late = match grant.open {
            Some(number) => number < self.opens_before,
            None => self.asked.is_some_and(|asked| asked.lost),
        };
        let is_gone = self.gone.is_some_and(|gone| gone.other == stateid.other && !is_after(stateid.seqid, gone.seqid));
        let is_older = self.held.as_ref().is_some_and(|held| {
            let same = held.grant.stateid.other == stateid.other;
            if same { !is_after(stateid.seqid, held.grant.stateid.seqid) } else { is_late }
        });
        if is_gone || is_older {
            return Granted::Outdated;
        }
        let is_recalled = self.recall.is_some_and(|recall| {
            recall.stateid.other == stateid.other && is_after(recall.stateid.seqid, stateid.seqid)
        });
        let continues = self.held.as_ref().is_some_and(|held| held.goes_on_as(grant.generation));
        let usability = if is_recalled || is_late { Usability::Unusable } else { Usability::Usable };
        self.grants += 1;
        self.held = Some(Held { grant, number: self.grants, usability, fenced: false, renewal: None });
        match usability {
            Usability::Usable => Granted::Usable { continues },
            _ if is_recalled => Granted::Recalled,
            _ => Granted::Doubtful,
        }
    }

    /// Begins to replace the layout with this number, which expires soon. Returns whether to request a layout for
    /// writing; `None` if an attempt to replace this layout is running or has just failed, or if the mgr has recalled
    /// the layout.
    pub(super) fn begin_renewal(&mut self, number: u64, now: Instant) -> Option<bool> {
        let is_recalled = self.recall.is_some();
        let held = self.held.as_mut().filter(|held| held.number == number && !is_recalled)?;
        match held.renewal {
            Some(Renewal::Running) => return None,
            Some(Renewal::NotBefore(at)) if now < at => return None,
            _ => held.renewal = Some(Renewal::Running),
        }
        Some(held.grant.write)
    }

    /// Returns whether the client still holds the layout with this number and I/O may use it, so that a renewal is
    /// useful.
    pub(super) fn is_current(&self, number: u64) -> bool {
        self.held.as_ref().is_some_and(|held| held.number == number && held.usability == Usability::Usable)
    }

    /// Ends an attempt to replace the layout with this number. If the client still holds the layout, the attempt has
    /// failed, and the next attempt may begin after a pause.
    pub(super) fn end_renewal(&mut self, number: u64, now: Instant) {
        if let Some(held) = self.held.as_mut().filter(|held| held.number == number) {
            held.renewal = Some(Renewal::NotBefore(now + RENEW_PAUSE));
        }
    }
}

/// I/O under the layout.
impl<L: Clone> LayoutState<L> {
    /// Begins a request under the layout; returns the layout and its number. `reading` says whether the file is open
    /// for reading. The caller ends the use with [`LayoutState::end_use`].
    pub(super) fn begin_use(&mut self, write: bool, reading: bool) -> Option<(L, u64)> {
        let allows = |held: &&Held<L>| if write { held.grant.write } else { held.grant.read || !reading };
        let held = self.held.as_ref().filter(|held| held.usability == Usability::Usable).filter(allows)?;
        self.uses += 1;
        Some((held.grant.layout.clone(), held.number))
    }
}

impl<L> LayoutState<L> {
    /// Counts another request under a layout that a request in progress already uses.
    pub(super) fn continue_use(&mut self) {
        self.uses += 1;
    }

    /// Ends a request under a layout; returns whether no request uses a layout any more.
    pub(super) fn end_use(&mut self) -> bool {
        self.uses = self.uses.saturating_sub(1);
        self.uses == 0
    }

    /// Returns whether any request uses a layout.
    pub(super) fn is_in_use(&self) -> bool {
        self.uses > 0
    }

    /// Returns the layout that the client holds, if any.
    pub(super) fn held(&self) -> Option<&Held<L>> {
        self.held.as_ref()
    }

    /// Returns the layout under which the client can send LAYOUTCOMMIT, if any.
    pub(super) fn reportable(&self) -> Option<&Held<L>> {
        self.held.as_ref().filter(|held| held.grant.write)
    }

    /// Forbids I/O under the layout with this number, because the iods refused it.
    pub(super) fn refused_by_iods(&mut self, number: u64) {
        if let Some(held) = self.held.as_mut().filter(|held| held.number == number) {
            held.spend();
        }
    }

    /// Forbids I/O under the layout after a failed truncate: the mgr may still execute the truncate, after later
    /// writes.
    pub(super) fn distrust(&mut self) {
        if let Some(held) = &mut self.held {
            held.spend();
        }
    }

    /// Records that the mgr has fenced the layout on request of this client.
    pub(super) fn fenced(&mut self) {
        if let Some(held) = &mut self.held {
            held.spend();
            held.fenced = true;
        }
    }
}

impl<L> Held<L> {
    fn spend(&mut self) {
        if self.usability == Usability::Usable {
            self.usability = Usability::Unusable;
        }
    }
}

/// The return, recall and loss of the layout.
impl<L> LayoutState<L> {
    /// Records a layout recall. Even if the client holds no layout, it answers with a LAYOUTRETURN
    /// ([`LayoutState::begin_return`]), because the reply that grants the layout may be in flight or lost.
    pub(super) fn recalled(&mut self, recall: Recall) {
        let later = |before: Recall| Recall { stateid: later(before.stateid, recall.stateid), ..recall };
        let before = self.recall.filter(|before| before.stateid.other == recall.stateid.other);
        self.recall = Some(before.map_or(recall, later));
    }

    /// Begins to answer a layout recall: no new request may use the layout. Returns `false` if there is no recall to
    /// answer.
    pub(super) fn begin_return(&mut self) -> bool {
        let is_recalled = self.recall.is_some();
        if let Some(held) = self.held.as_mut().filter(|_| is_recalled) {
            held.usability = Usability::Returning;
        }
        is_recalled
    }

    /// Removes the recalled layout, and returns the layout type and stateid for the LAYOUTRETURN. Returns `None` while
    /// a request uses a layout.
    pub(super) fn take_recalled(&mut self) -> Option<(layouttype4, stateid4)> {
        let Recall { kind, stateid } = self.recall.filter(|_| !self.is_in_use())?;
        self.recall = None;
        let held = self.held.take_if(|held| held.grant.stateid.other == stateid.other);
        let stateid = held.map_or(stateid, |held| later(held.grant.stateid, stateid));
        if let Some(other) = &mut self.held {
            // The client holds a layout with a stateid other than the recalled one: the recall came late, or it
            // overtook the grant of the recalled layout. The next I/O requests a layout again.
            other.usability = Usability::Unusable;
        }
        self.gone = Some(stateid);
        Some((kind, stateid))
    }

    /// Removes the layout, and returns its layout type and stateid for the LAYOUTRETURN of the last close. Returns
    /// `None` while a request uses the layout; then the layout stays until the mgr recalls it.
    pub(super) fn take_for_close(&mut self) -> Option<(layouttype4, stateid4)> {
        let in_use = self.is_in_use();
        let Grant { kind, stateid, .. } = self.held.take_if(|_| !in_use)?.grant;
        // The LAYOUTRETURN of the close also answers a recall of the layout, so remove the recall.
        let recall = self.recall.take_if(|recall| recall.stateid.other == stateid.other);
        let stateid = recall.map_or(stateid, |recall| later(stateid, recall.stateid));
        self.gone = Some(stateid);
        Some((kind.number(), stateid))
    }

    /// Records the end of a LAYOUTRETURN, with or without a reply. `opens` is the number of OPENs that the client has
    /// sent by now.
    pub(super) fn returned(&mut self, opens: u64) {
        self.opens_before = opens;
    }

    /// Drops a layout that the mgr revoked or does not know. `opens` is the number of OPENs that the client has sent by
    /// now. Requests that use the layout continue until the iods refuse them.
    pub(super) fn lose(&mut self, opens: u64) {
        self.held = None;
        if let Some(asked) = &mut self.asked {
            asked.lost = true;
        }
        self.opens_before = opens;
    }
}
