//! Fences for an iod that connects: before the iod is used, it receives all fences that the namespace has noted.

use super::Iods;
use super::link::{Link, SILENT, within};
use futures_util::{StreamExt, stream};
use meta::schema::Intent;
use types::{FileId, Status};
use wire::native::{FenceArgs, Nothing, Procedure, Rights};

/// Number of notes that one read of the namespace returns at most.
const FENCES: usize = 1024;
/// Number of fences in flight at a time.
const AT_ONCE: usize = 16;

/// Sends an iod all noted fences; returns the text for the status of the iod if a fence fails.
pub(super) async fn tell_fences(iods: &Iods, number: u16, link: &Link) -> Result<(), String> {
    fence(iods, number, link).await.map_err(|e| format!("cannot send it the pending fences: {e}"))
}

/// Sends an iod, before it is used, all fences that are still noted: capabilities may have been revoked while it was
/// down.
async fn fence(iods: &Iods, number: u16, link: &Link) -> Result<(), Status> {
    let mut after = None;
    loop {
        let page = iods.namespace.intents(after, FENCES)?;
        let Some(last) = page.last() else { return Ok(()) };
        after = Some(*last);
        let fences = page.iter().filter(|noted| matches!(noted.intent, Intent::Fence(_))).map(|noted| noted.file);
        let fences: Vec<FileId> = fences.collect();
        // Each fence takes a flush, and other requests wait for the iod: so several run at a time.
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
    let Some(object) = info.layout.and_then(|layout| iods.kinds.object_on(&layout, file, number)) else {
        return Ok(());
    };
    let cap = link.capability(object, info.generation, Rights::ADMIN);
    let arguments = FenceArgs { cap, generation: info.generation };
    match within(SILENT, link.call::<Nothing>(Procedure::Fence, &arguments)).await {
        Ok(Nothing) => Ok(()),
        Err(Status::Delay) => Err(Status::Delay),
        // An object that cannot be fenced can be neither written nor read.
        Err(e) => {
            tracing::error!(file = file.0, iod = %link.hello.iod, "cannot fence the objects of the file: {e}");
            Ok(())
        }
    }
}
