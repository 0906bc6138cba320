//! Room for a range of a file.

use super::Objects;
use types::{ByteRange, Status};
use wire::native::{Nothing, Procedure, ReserveArgs, Rights};

impl Objects<'_> {
    /// Has every object, those of all copies, take room for its part of a range, durably; the objects become as long as that.
    ///
    /// Nothing is done when an iod is down (`Delay`). When one has no room (`NoSpc`) or cannot reserve any (`NotSupp`), others may
    /// have done it.
    pub(crate) async fn reserve(&self, range: ByteRange) -> Result<(), Status> {
        self.all_up()?;
        let reserve = |index| async move {
            // Bytes of an object keep the order of the file: a range of the file is one range of each object.
            let column = self.column(index);
            let offset = self.distribution.object_size(range.offset, column);
            let len = self.distribution.object_size(range.end(), column) - offset;
            if len == 0 {
                return Ok(Nothing);
            }
            let link = self.link(index)?;
            let arguments = ReserveArgs { cap: self.capability(&link, Rights::WRITE), offset, len };
            link.call(Procedure::Reserve, &arguments).await
        };
        self.each(reserve).await.map(drop)
    }
}
