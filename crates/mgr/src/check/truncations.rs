//! The check of noted truncations that an iod refuses: until they are done, the file does not grow.

use super::finding::Kind;
use super::run::{Check, Checked};
use crate::intents::Cut;
use types::Status;

impl Check {
    /// Tries every noted truncation again, as `finish_intents` does every two seconds.
    pub(super) async fn cuts(&mut self) -> Checked {
        let files = self.volume.notes.cuts();
        self.begin("truncations", files.len() as u64).await?;
        for file in files {
            let Err(refused) = self.volume.finish_cut(file).await else { continue };
            // A truncation that waits for an iod continues when the iod is back: the check of objects reports the iod.
            let (Some(Cut::To(size)), true) = (self.volume.notes.cut(file), refused != Status::Delay) else { continue };
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
