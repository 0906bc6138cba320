//! The check of pending truncations finds each truncation that an iod refuses. Until every iod has truncated its
//! object, the file cannot grow.

use super::finding::Kind;
use super::run::{Check, Checked};
use crate::intents::Truncation;
use types::Status;

impl Check {
    /// Repeats every truncation for which an intent exists, as the background job `finish_intents` does every two
    /// seconds.
    pub(super) async fn finish_truncations(&mut self) -> Checked {
        let files = self.volume.intents.truncations();
        self.begin("truncations", files.len() as u64).await?;
        for file in files {
            let Err(refused) = self.volume.finish_cut(file).await else { continue };
            // `Delay` means that an iod is down, so the truncation continues when the iod is back. The check of objects
            // reports this iod.
            let (Some(Truncation::To(size)), true) = (self.volume.intents.truncation(file), refused != Status::Delay)
            else {
                continue;
            };
            let text =
                format!("it was truncated to {size} bytes, but an iod refuses to truncate its object: {refused}");
            let finding = Kind::CutRefused.found(Some(file), None, text);
            match self.repair {
                true => {
                    let outcome = self.volume.give_up_cut(file).await.map(|_| true);
                    self.mended(finding, outcome).await?;
                }
                false => self.found(finding).await?,
            }
        }
        Ok(())
    }
}
