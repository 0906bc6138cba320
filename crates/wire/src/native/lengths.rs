//! LENGTHS: questions of an iod to the mgr about file lengths, asked when an object ends inside a range that a client
//! of the files layout reads.

use types::ObjectId;
use xdr::{Malformed, Reader, Writer, Xdr};

use super::{Capability, LENGTHS_MAX, put_object, take_object};

/// Arguments of LENGTHS.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LengthsArgs {
    /// For [`super::STORE_OBJECT`]; needs ADMIN.
    pub cap: Capability,
    /// Answers to the questions of the previous reply.
    pub answers: Vec<Length>,
}

impl Xdr for LengthsArgs {
    fn encode(&self, out: &mut Writer) {
        self.cap.encode(out);
        out.array(&self.answers, |out, answer| answer.encode(out));
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        Ok(LengthsArgs { cap: Capability::decode(input)?, answers: input.array(LENGTHS_MAX, Length::decode)? })
    }
}

/// The answer to one question.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Length {
    /// Number of the question.
    pub number: u64,
    /// A length that is valid at some moment after the question was read; `None` if the mgr could not determine it
    /// without asking iods.
    pub length: Option<FileLength>,
}

/// The length of a file, and the least length of one of its objects.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FileLength {
    /// Length of the file in bytes.
    pub file: u64,
    /// Least valid size in bytes of the file's object on the asking iod. A shorter object has lost bytes.
    pub least: u64,
}

impl Xdr for Length {
    fn encode(&self, out: &mut Writer) {
        out.u64(self.number);
        out.optional(self.length.as_ref(), |out, length| {
            out.u64(length.file);
            out.u64(length.least);
        });
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        let number = input.u64()?;
        let length = input.optional(|input| Ok(FileLength { file: input.u64()?, least: input.u64()? }))?;
        Ok(Length { number, length })
    }
}

/// Result of LENGTHS. The iod also replies, without questions, when it had no question for a while.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LengthsReply {
    /// The questions to answer with the next LENGTHS.
    pub asked: Vec<LengthQuestion>,
}

impl Xdr for LengthsReply {
    fn encode(&self, out: &mut Writer) {
        out.array(&self.asked, |out, question| question.encode(out));
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        Ok(LengthsReply { asked: input.array(LENGTHS_MAX, LengthQuestion::decode)? })
    }
}

/// A question of an iod.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LengthQuestion {
    /// Number of the question, unique in this run of the iod.
    pub number: u64,
    /// The object of the file.
    pub object: ObjectId,
}

impl Xdr for LengthQuestion {
    fn encode(&self, out: &mut Writer) {
        out.u64(self.number);
        put_object(out, self.object);
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        Ok(LengthQuestion { number: input.u64()?, object: take_object(input)? })
    }
}
