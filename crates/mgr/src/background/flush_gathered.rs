//! The flush of gathered writes: a background job that sends gathered bytes to the iods when the gather delay of these
//! bytes has passed.

use super::{Context, Job};
use crate::volume::Volume;
use crate::volume::gathering::Why;
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use layout::gather::Part;
use std::sync::Arc;
use types::Status;

/// Largest number of files that the job flushes concurrently.
const AT_ONCE: usize = 256;

pub(super) struct FlushGathered {
    volume: Arc<Volume>,
    /// The flushes of gathered bytes in flight, one for each file.
    going: FuturesUnordered<BoxFuture<'static, Result<(), Status>>>,
}

impl Job for FlushGathered {
    const NAME: &'static str = "flushing gathered writes";

    fn new(context: &Context) -> Self {
        FlushGathered { volume: context.volume.clone(), going: FuturesUnordered::new() }
    }

    async fn due(&mut self) {
        let FlushGathered { volume, going } = self;
        let may_more = going.len() < AT_ONCE;
        tokio::select! {
            biased;
            Some(outcome) = going.next() => {
                if let Err(error) = outcome {
                    tracing::debug!("gathered writes did not reach the iods yet: {error}");
                }
            }
            () = volume.gathered.wait(), if may_more => {}
        }
    }

    async fn pass(&mut self) -> Result<(), Status> {
        for file in self.volume.gathered.due(AT_ONCE - self.going.len()) {
            let volume = self.volume.clone();
            self.going.push(Box::pin(async move { volume.let_go(file, Part::All, Why::Delay).await }));
        }
        Ok(())
    }
}
