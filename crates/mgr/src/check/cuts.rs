//! Truncations that are noted and that an iod refuses to carry out: until they are done, no file grows.

use super::finding::Kind;
use super::run::{Check, Checked};
use crate::notes::Cut;
use types::Status;

impl Check {
    /// Tries every noted truncation once more, as the settler does every two seconds.
    pub(super) async fn cuts(&mut self) -> Checked {
        let files = self.room.notes.cuts();
        self.begin("truncations", files.len() as u64).await?;
        for file in files {
            let Err(refused) = self.room.finish_cut(file).await else { continue };
            // One that waits for an iod goes on when the iod is back: the iod is told of with its objects.
            let (Some(Cut::To(size)), true) = (self.room.notes.cut(file), refused != Status::Delay) else { continue };
            let text = format!("it was truncated to {size} bytes, but an iod refuses that for its object: {refused}");
            let finding = Kind::CutRefused.found(Some(file), None, text);
            match self.repair {
                true => {
                    let outcome = self.room.give_up_cut(file).await.map(|_| true);
                    self.mended(finding, outcome).await?;
                }
                false => self.found(finding).await?,
            }
        }
        Ok(())
    }
}
