//! The objects of one iod: the list of all objects, and the removal of an object found in the list.

use super::link::Link;
use types::{Generation, ObjectId, Status};
use wire::native::{ListArgs, ListEntry, ListReply, Nothing, ObjectArgs, Procedure, Rights, STORE_OBJECT};

/// Lists up to `max` objects of an iod: those after the object `after`, or the first ones if `after` is `None`.
pub(crate) async fn list(link: &Link, after: Option<ObjectId>, max: u32) -> Result<ListReply, Status> {
    let cap = link.capability(STORE_OBJECT, Generation::default(), Rights::ADMIN);
    link.call(Procedure::List, &ListArgs { cap, after, max }).await
}

/// Removes an object that the iod listed, unless the generation of the object has risen since the iod listed it.
pub(crate) async fn remove(link: &Link, entry: &ListEntry) -> Result<(), Status> {
    let cap = link.capability(entry.object, entry.generation, Rights::ADMIN);
    link.call::<Nothing>(Procedure::Remove, &ObjectArgs { cap }).await.map(drop)
}
