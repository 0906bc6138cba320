//! The layout state of one open file: the layout that the client holds, the requests for one, the I/O under it, and the
//! recall that the client has not answered yet.
//!
//! A layout is always for the whole file. The stateid of all layouts that the mgr grants in turn stays the same, with a
//! growing sequence number, until the client returns the last of them or the mgr revokes them (RFC 8881 §12.5.3). The
//! sequence numbers order grants and recalls whose messages overtake each other.
//!
//! The state is pure: it gets the time as an argument, and `L` stands for the driver's layout.

#[cfg(test)]
mod tests;

use layout::kinds::KindId;
use std::time::Duration;
use tokio::time::Instant;
use types::Generation;
use wire::nfs4::{layouttype4, stateid4};

/// The pause between attempts to replace a layout that ends soon.
const RENEW_PAUSE: Duration = Duration::from_secs(1);

/// A layout that the mgr granted.
#[derive(Clone, Debug)]
pub(super) struct Grant<L> {
    /// The layout, as the driver made it usable.
    pub(super) layout: L,
    /// The fencing generation of the layout.
    pub(super) generation: Generation,
    pub(super) kind: KindId,
    pub(super) stateid: stateid4,
    /// Whether the layout allows writing.
    pub(super) write: bool,
    /// Whether the file was open for reading when the layout was granted: a layout allows no more than the opens do.
    pub(super) read: bool,
    /// The number of the OPEN that asked for the layout; `None` for a LAYOUTGET of its own.
    pub(super) open: Option<u64>,
}

/// The outcome of a layout grant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Granted {
    /// I/O uses the layout from now on.
    Usable {
        /// Whether the mgr has known the previous layout until this grant.
        continues: bool,
    },
    /// A recall overtook the grant: the client holds the layout only to return it.
    Recalled,
    /// The client lost or returned its layout after it had sent the request, and the mgr may have granted this layout
    /// before. The client holds the layout, but asks again before it uses one.
    Doubtful,
    /// The grant is older than the layout that the client holds or has returned.
    Outdated,
}

/// A recall of a layout by the mgr.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Recall {
    /// The layout type.
    pub(super) kind: layouttype4,
    /// The stateid in the recall. Its sequence number is above those of all recalled grants.
    pub(super) stateid: stateid4,
}

/// Whether I/O may use the layout that the client holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Standing {
    /// I/O may use it.
    Usable,
    /// No I/O may use it, because the iods refuse it, or because it may be revoked. The client reports earlier writes
    /// under it and returns it on a recall.
    Spent,
    /// No I/O may begin to use it. The client returns it when the last request under it has ended.
    Returning,
}

/// The replacement of a layout that ends soon.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Renewal {
    /// A task is asking for the next layout.
    Running,
    /// The last attempt failed. The next one begins after this time.
    NotBefore(Instant),
}

/// The layout that the client holds.
#[derive(Clone, Debug)]
pub(super) struct Held<L> {
    grant: Grant<L>,
    /// Distinguishes this layout from all other layouts that the file had while it was open.
    number: u64,
    standing: Standing,
    /// Whether this client made the mgr fence the layout.
    fenced: bool,
    /// The replacement of this layout, once an attempt has begun.
    renewal: Option<Renewal>,
}

/// A LAYOUTGET in flight.
#[derive(Clone, Copy, Debug)]
struct Asked {
    /// Whether the client lost its layout after it had sent the request.
    lost: bool,
}

/// The layout state of one open file.
#[derive(Clone, Debug)]
pub(super) struct LayoutState<L> {
    /// The last granted layout, until the client returns or loses it.
    held: Option<Held<L>>,
    /// The LAYOUTGET in flight, if any. OPENs may ask for a layout at the same time.
    asked: Option<Asked>,
    /// Number of layouts that the client has held.
    grants: u64,
    /// Number of requests that use a layout, this one or an earlier one.
    uses: usize,
    /// The recall that the client has to answer with a LAYOUTRETURN.
    recall: Option<Recall>,
    /// The stateid of the layout that the client returned last. Grants up to this sequence number are gone.
    gone: Option<stateid4>,
    /// Number of OPENs sent when the client last returned or lost a layout. The answer to one of them may grant a
    /// layout that is gone.
    opens_before: u64,
    /// The kind to ask for: its position in the client's order of preference. The mgr has refused the kinds before it.
    kind: usize,
    /// The mgr has refused every kind. The client does not ask again while the file stays open.
    refused: bool,
}

/// Returns whether `seqid` comes after `other`; sequence numbers wrap around.
fn is_after(seqid: u32, other: u32) -> bool {
    seqid.wrapping_sub(other) as i32 > 0
}

/// Returns the later of two stateids of the same layout.
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
    /// Returns the layout.
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

    /// Returns whether a grant with this generation shows that the mgr has known this layout without a break.
    fn goes_on_as(&self, generation: Generation) -> bool {
        generation.0 == self.grant.generation.0 + u32::from(self.fenced)
    }
}

/// Requests for a layout, and grants.
impl<L> LayoutState<L> {
    /// Returns whether a LAYOUTGET for the preferred kind would be useful.
    pub(super) fn wants(&self, read: bool, write: bool) -> bool {
        let fits = |held: &Held<L>| {
            held.standing == Standing::Usable && (!write || held.grant.write) && (!read || held.grant.read)
        };
        !self.refused && self.kind == 0 && !self.held.as_ref().is_some_and(fits)
    }

    /// Returns whether the mgr has refused every kind of layout.
    pub(super) fn is_refused(&self) -> bool {
        self.refused
    }

    /// Returns the position of the kind to ask for in the client's order of preference.
    pub(super) fn kind(&self) -> usize {
        self.kind
    }

    /// Records that the mgr refused the kind at this position of `count` kinds.
    pub(super) fn refuse(&mut self, position: usize, count: usize) {
        if position + 1 < count {
            self.kind = self.kind.max(position + 1);
        } else {
            self.refused = true;
        }
    }

    /// Begins a LAYOUTGET; returns `false` if one is in flight.
    pub(super) fn begin_asking(&mut self) -> bool {
        let begins = self.asked.is_none();
        self.asked = self.asked.or(Some(Asked { lost: false }));
        begins
    }

    /// Ends the LAYOUTGET in flight, after [`LayoutState::granted`] if the mgr granted a layout.
    pub(super) fn end_asking(&mut self) {
        self.asked = None;
    }

    /// Takes over a layout that the mgr granted.
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
        let standing = if is_recalled || is_late { Standing::Spent } else { Standing::Usable };
        self.grants += 1;
        self.held = Some(Held { grant, number: self.grants, standing, fenced: false, renewal: None });
        match standing {
            Standing::Usable => Granted::Usable { continues },
            _ if is_recalled => Granted::Recalled,
            _ => Granted::Doubtful,
        }
    }

    /// Begins to replace the layout with this number, which ends soon. Returns whether the next one is for writing;
    /// `None` if an attempt is running or has just failed, or if the mgr wants this layout back.
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

    /// Returns whether the layout with this number is held and usable, so that a renewal is still useful.
    pub(super) fn is_current(&self, number: u64) -> bool {
        self.held.as_ref().is_some_and(|held| held.number == number && held.standing == Standing::Usable)
    }

    /// Ends an attempt to replace the layout with this number. If it failed, the next one begins after a pause.
    pub(super) fn end_renewal(&mut self, number: u64, now: Instant) {
        if let Some(held) = self.held.as_mut().filter(|held| held.number == number) {
            held.renewal = Some(Renewal::NotBefore(now + RENEW_PAUSE));
        }
    }
}

/// Use of the layout.
impl<L: Clone> LayoutState<L> {
    /// Begins to use the layout for a request; returns the layout and its number. `reading` says whether the file is
    /// open for reading. Every use ends with [`LayoutState::end_use`].
    pub(super) fn begin_use(&mut self, write: bool, reading: bool) -> Option<(L, u64)> {
        let allows = |held: &&Held<L>| if write { held.grant.write } else { held.grant.read || !reading };
        let held = self.held.as_ref().filter(|held| held.standing == Standing::Usable).filter(allows)?;
        self.uses += 1;
        Some((held.grant.layout.clone(), held.number))
    }
}

impl<L> LayoutState<L> {
    /// Divides a use in two: a request under the layout continues as one more request.
    pub(super) fn continue_use(&mut self) {
        self.uses += 1;
    }

    /// Ends a use; returns whether no request uses a layout any more.
    pub(super) fn end_use(&mut self) -> bool {
        self.uses = self.uses.saturating_sub(1);
        self.uses == 0
    }

    /// Returns whether a request uses a layout.
    pub(super) fn is_in_use(&self) -> bool {
        self.uses > 0
    }

    /// Returns the layout that the client holds.
    pub(super) fn held(&self) -> Option<&Held<L>> {
        self.held.as_ref()
    }

    /// Returns the layout under which the client can report writes (LAYOUTCOMMIT).
    pub(super) fn reportable(&self) -> Option<&Held<L>> {
        self.held.as_ref().filter(|held| held.grant.write)
    }

    /// Stops the use of the layout with this number, which the iods refused.
    pub(super) fn refused_by_iods(&mut self, number: u64) {
        if let Some(held) = self.held.as_mut().filter(|held| held.number == number) {
            held.spend();
        }
    }

    /// Stops the use of the layout: requests under it may be executed in a wrong order.
    pub(super) fn distrust(&mut self) {
        if let Some(held) = &mut self.held {
            held.spend();
        }
    }

    /// Records that the mgr has fenced the layout on behalf of this client.
    pub(super) fn fenced(&mut self) {
        if let Some(held) = &mut self.held {
            held.spend();
            held.fenced = true;
        }
    }
}

impl<L> Held<L> {
    fn spend(&mut self) {
        if self.standing == Standing::Usable {
            self.standing = Standing::Spent;
        }
    }
}

/// Return, recall and loss.
impl<L> LayoutState<L> {
    /// Records a recall. The client answers it with a LAYOUTRETURN ([`LayoutState::begin_return`]), also if it does not
    /// hold the layout: its grant may be in an answer on its way, or lost.
    pub(super) fn recalled(&mut self, recall: Recall) {
        let later = |before: Recall| Recall { stateid: later(before.stateid, recall.stateid), ..recall };
        let before = self.recall.filter(|before| before.stateid.other == recall.stateid.other);
        self.recall = Some(before.map_or(recall, later));
    }

    /// Begins to answer a recall: from here on no request begins to use a layout, until none does. Returns `false` if no
    /// recall waits for an answer.
    pub(super) fn begin_return(&mut self) -> bool {
        let is_recalled = self.recall.is_some();
        if let Some(held) = self.held.as_mut().filter(|_| is_recalled) {
            held.standing = Standing::Returning;
        }
        is_recalled
    }

    /// Takes the layout of a recall to return it, once no request uses it; returns the layout type and the stateid.
    pub(super) fn take_recalled(&mut self) -> Option<(layouttype4, stateid4)> {
        let Recall { kind, stateid } = self.recall.filter(|_| !self.is_in_use())?;
        self.recall = None;
        let held = self.held.take_if(|held| held.grant.stateid.other == stateid.other);
        let stateid = held.map_or(stateid, |held| later(held.grant.stateid, stateid));
        if let Some(other) = &mut self.held {
            // The recall came late, or ahead of the grant of the recalled layout. The client asks before the next use.
            other.standing = Standing::Spent;
        }
        self.gone = Some(stateid);
        Some((kind, stateid))
    }

    /// Takes the layout to return it with the last close; returns the layout type and the stateid. A layout that a
    /// request uses stays until the mgr recalls it.
    pub(super) fn take_for_close(&mut self) -> Option<(layouttype4, stateid4)> {
        let in_use = self.is_in_use();
        let Grant { kind, stateid, .. } = self.held.take_if(|_| !in_use)?.grant;
        // This return is also the answer to a recall.
        let recall = self.recall.take_if(|recall| recall.stateid.other == stateid.other);
        let stateid = recall.map_or(stateid, |recall| later(stateid, recall.stateid));
        self.gone = Some(stateid);
        Some((kind.number(), stateid))
    }

    /// Records that the mgr has answered a LAYOUTRETURN, or will not, when `opens` OPENs were sent.
    pub(super) fn returned(&mut self, opens: u64) {
        self.opens_before = opens;
    }

    /// Drops a layout that the mgr has revoked or forgotten, when `opens` OPENs were sent. Requests that use it
    /// continue until the iods refuse them.
    pub(super) fn lose(&mut self, opens: u64) {
        self.held = None;
        if let Some(asked) = &mut self.asked {
            asked.lost = true;
        }
        self.opens_before = opens;
    }
}
