//! The check of scrub findings: damage inside objects that the last scrub found and that still exists. A repair
//! overwrites the damaged blocks with the bytes of another copy.

use super::finding::Kind;
use super::run::{Check, Checked};
use crate::kinds::Stored;
use crate::proxy::Suspect;
use std::collections::BTreeMap;
use types::{ByteRange, FileId, Status};
use wire::admin::Finding;

/// The damage of one file: for each damaged range, the iod number and the range of the object on this iod.
type Damage = Vec<(u16, ByteRange)>;

impl Check {
    pub(super) async fn scrubbed(&mut self) -> Checked {
        let mut files = BTreeMap::<FileId, Damage>::new();
        for (iod, file, range) in self.volume.scrubs.damaged_ranges() {
            files.entry(file).or_default().push((iod, range));
        }
        self.begin("what the last scrub found", files.len() as u64).await?;
        for (file, damage) in files {
            match self.still_damaged(file, &damage).await {
                Ok(findings) => {
                    for (suspect, finding) in findings {
                        self.report_damage(file, suspect, finding).await?;
                    }
                }
                // `Stale`: the file was deleted. `Delay`: an iod is down, and the check of files reports this iod. So
                // report neither.
                Err(Status::Stale | Status::Delay) => {}
                Err(status) => return Err(status.into()),
            }
            self.looked(1).await?;
        }
        Ok(())
    }

    async fn report_damage(&mut self, file: FileId, suspect: Suspect, finding: Finding) -> Checked {
        if !self.repair {
            return self.found(finding).await;
        }
        let outcome = match Kind::is_of_a_copy(&finding.code) {
            true => self.volume.rebuild(file, &[suspect]).await.map(|_| true),
            false => Ok(false),
        };
        let outcome = if outcome == Err(Status::Lost) { Ok(false) } else { outcome };
        self.mended(finding, outcome).await
    }

    /// Queries the iods, and returns the damaged ranges of the file that still exist.
    async fn still_damaged(&self, file: FileId, damage: &Damage) -> Result<Vec<(Suspect, Finding)>, Status> {
        let info = self.volume.namespace.info(file)?;
        let Ok(Some(objects)) = self.volume.objects(&info) else { return Ok(Vec::new()) };
        let mut found = Vec::new();
        for (iod, range) in damage {
            let Some(index) = objects.index_on(*iod) else { continue };
            let suspect = Suspect { index, range: *range };
            if objects.is_damaged_in(suspect).await? {
                found.push((suspect, self.damaged(&*objects, suspect)?));
            }
        }
        Ok(found)
    }

    fn damaged(&self, objects: &dyn Stored, suspect: Suspect) -> Result<Finding, Status> {
        let kind = if objects.mirrors() > 1 { Kind::CopyDamaged } else { Kind::BytesDamaged };
        let iod = self.volume.iods.registered(objects.iod(suspect.index))?.id;
        let lost = super::files::Lost::of(objects, suspect.index, suspect.range);
        let text = format!("its iod cannot read them, or they do not match their checksum: {lost}");
        let finding = kind.found(Some(objects.known().file), Some(iod), text);
        Ok(Finding { range: lost.range(), ..finding })
    }
}
