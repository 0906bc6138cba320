//! Fences that an iod has not executed yet when it connects, stored as intents in the namespace. The mgr sends these
//! fences to the iod before it uses the iod for any request.

use super::Iods;
use super::link::{Link, SILENT, within};
use futures_util::{StreamExt, stream};
use meta::schema::Intent;
use types::{FileId, Generation, ObjectId, Status};
use wire::native::{FenceArgs, Nothing, Procedure, Rights};

/// Largest number of intents that one read of the namespace returns.
const FENCES: usize = 1024;
/// Number of fences in flight to an iod at a time.
const AT_ONCE: usize = 16;

/// Sends all pending fences to an iod. If this fails, returns the text that `weir status` shows for the iod.
pub(super) async fn tell_fences(iods: &Iods, number: u16, link: &Link) -> Result<(), String> {
    fence(iods, number, link).await.map_err(|e| format!("cannot send it the pending fences: {e}"))
}

/// Sends all pending fences to an iod before the mgr uses the iod for any request. The mgr may have revoked
/// capabilities while the iod was down.
async fn fence(iods: &Iods, number: u16, link: &Link) -> Result<(), Status> {
    let mut after = None;
    loop {
        let page = iods.namespace.intents(after, FENCES)?;
        let Some(last) = page.last() else { return Ok(()) };
        after = Some(*last);
        let fences = page.iter().filter(|noted| matches!(noted.intent, Intent::Fence(_))).map(|noted| noted.file);
        let fences: Vec<FileId> = fences.collect();
        // Send several fences at a time: each fence takes a flush on the iod, and client requests wait until the iod
        // has all fences.
        let mut told = stream::iter(fences).map(|file| fence_one(iods, number, link, file)).buffer_unordered(AT_ONCE);
        while let Some(outcome) = told.next().await {
            outcome?;
        }
    }
}

async fn fence_one(iods: &Iods, number: u16, link: &Link, file: FileId) -> Result<(), Status> {
    let info = match iods.namespace.info(file) {
        Err(Status::Stale) => return Ok(()),
        info => info?,
    };
    let objects = info.layout.map(|layout| iods.kinds.objects_on(&layout, file, number)).unwrap_or_default();
    for object in objects {
        fence_object(link, object, info.generation).await?;
    }
    Ok(())
}

async fn fence_object(link: &Link, object: ObjectId, generation: Generation) -> Result<(), Status> {
    let arguments = FenceArgs { cap: link.capability(object, generation, Rights::ADMIN), generation };
    match within(SILENT, link.call::<Nothing>(Procedure::Fence, &arguments)).await {
        Ok(Nothing) => Ok(()),
        Err(Status::Delay) => Err(Status::Delay),
        // Continue after this error: an iod that cannot fence an object does not let clients read or write this object
        // either.
        Err(e) => {
            tracing::error!(%object, iod = %link.hello.iod, "cannot fence an object: {e}");
            Ok(())
        }
    }
}
