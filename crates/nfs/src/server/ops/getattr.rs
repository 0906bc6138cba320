//! GETATTR: returns those requested attributes of the current file that the server supports (RFC 8881 §18.7).

use crate::attrs;
use crate::fs::FileSystem;
use crate::server::callbacks::Callbacks;
use crate::server::compound::{Answer, Compound};
use crate::values::Values;
use wire::nfs4::*;

pub(super) async fn run<F: FileSystem, C: Callbacks>(
    cx: &mut Compound<'_, F, C>,
    args: GETATTR4args,
) -> Answer<GETATTR4resok> {
    let file = cx.file()?;
    let mask = cx.asked(&args.attr_request)?;
    let private = !mask.is_empty() && mask.without(attrs::PRIVATE).is_empty();
    let values = match private {
        true => {
            let mut values = Values::default();
            cx.add_private_values(&mut values, mask, file).await?;
            values
        }
        false => {
            let found = cx.attributes(file, mask).await?;
            cx.values(mask, &found).await?
        }
    };
    Ok(GETATTR4resok { obj_attributes: attrs::encode(mask, &values) })
}
