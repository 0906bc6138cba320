//! Repairs of faults that `weir fsck` found. Each repair is one batch, so a crash leaves every fault either repaired or
//! unchanged.
//!
//! The view of the check is out of date when the repair runs. So each repair reads the records again, and its batch
//! conflicts if these records change before the commit.

mod counts;
mod names;
mod records;

use super::{Plan, known};
use crate::check::{Fault, Mended};
use crate::tx::Tx;
use types::FileId;

/// Name of the directory `/lost+found`, in which repairs create a name for each file that has no name.
pub(crate) const LOST_AND_FOUND: &[u8] = b"lost+found";

/// Repairs a fault. `lost` is the directory `/lost+found`, for files without a name. If `lost` is `None`, faults that
/// need this directory are not repaired.
pub(crate) fn plan(tx: &mut Tx<'_>, fault: &Fault, lost: Option<FileId>) -> Plan<Mended> {
    let mended = match fault {
        Fault::Record { key } => records::damaged(tx, key),
        Fault::Key { .. } | Fault::Root => Ok(Mended::No),
        Fault::NoTail { id } => records::no_tail(tx, *id),
        Fault::NoCore { id } => records::no_core(tx, *id),
        Fault::StrayXattrs { id } => records::stray_xattrs(tx, *id),
        Fault::StrayBytes { id } => records::stray_bytes(tx, *id),
        Fault::LostOrphan { id } => records::lost_orphan(tx, *id),
        Fault::StrayOrphan { id } => records::stray_orphan(tx, *id),
        Fault::DoomedAlive { id } => records::doomed_alive(tx, *id),
        Fault::StrayIntent { id, kind } => records::stray_intent(tx, *id, *kind),
        Fault::Dangling { at } => names::dangling(tx, at),
        Fault::Kind { at, .. } => names::kind(tx, at),
        Fault::Cookie { at } => names::cookie(tx, at),
        Fault::Twice { at } => names::twice(tx, at),
        Fault::Parent { at, .. } => names::parent(tx, at),
        Fault::Second { at } => names::second(tx, at),
        Fault::NoDirectory { dir, .. } => names::no_directory(tx, *dir, lost),
        Fault::Circle { id } => names::circle(tx, *id, lost),
        Fault::Nameless { id, core } => names::nameless(tx, *id, core, lost),
        Fault::Links { id, found, core, .. } => counts::links(tx, *id, *found, core),
        Fault::Entries { dir, .. } | Fault::Subdirs { dir, .. } => counts::directory(tx, *dir),
        Fault::Xattrs { id, .. } => counts::xattrs(tx, *id),
        Fault::Files { told, found } => counts::files(tx, *told, *found),
        Fault::NextId { used, .. } => counts::next_id(tx, *used),
    };
    known(mended?)
}
