//! The generated code.

use proc_macro2::{Span, TokenStream};
use quote::{format_ident, quote};
use syn::ext::IdentExt as _;
use syn::{Data, DataEnum, DeriveInput, Error, Fields, Ident, Index, Member, Path, Result, Variant};

use crate::attributes::{Attributes, Place, check_event_type};
use crate::description::Description;
use crate::serde_attributes;

/// Expands `#[derive(Message)]`.
pub(crate) fn expand(input: &DeriveInput) -> Result<TokenStream> {
    if !input.generics.params.is_empty() {
        return Err(Error::new_spanned(
            &input.generics,
            "a message cannot have generic parameters: an event type stands for one type of payload; \
             write a struct for each, or implement `outbox::Message` by hand",
        ));
    }
    match &input.data {
        Data::Struct(data) => of_struct(input, &data.fields),
        Data::Enum(data) => of_enum(input, data),
        Data::Union(data) => Err(Error::new_spanned(
            data.union_token,
            "a union cannot be a message: derive `Message` for a struct or an enum",
        )),
    }
}

fn of_struct(input: &DeriveInput, fields: &Fields) -> Result<TokenStream> {
    let ident = &input.ident;
    let own = Attributes::parse(&input.attrs, Place::Struct)?;
    let Some(event_type) = &own.event_type else {
        let advice = format!("the event type of `{ident}` is missing: #[message(type = \"order.placed\")]");
        return Err(Error::new_spanned(ident, advice));
    };
    let owner = format!("`{ident}`");
    let description = Description { event_type: event_type.value(), own: &own, shared: None, fields, owner };
    description.message_impl(&krate(&own), ident)
}

/// Each variant gets a struct with its fields, which is a message. The enum is written and read
/// through them.
fn of_enum(input: &DeriveInput, data: &DataEnum) -> Result<TokenStream> {
    let ident = &input.ident;
    let shared = Attributes::parse(&input.attrs, Place::Enum)?;
    let krate = krate(&shared);
    if data.variants.is_empty() {
        return Err(Error::new_spanned(ident, format!("`{ident}` has no variants, so no event types")));
    }
    let (mut payloads, mut writing, mut reading) = (Vec::new(), Vec::new(), Vec::new());
    let mut types: Vec<(String, &Ident)> = Vec::new();
    let mut aggregate_types: Vec<Option<String>> = Vec::new();
    for variant in &data.variants {
        let own = Attributes::parse(&variant.attrs, Place::Variant)?;
        let event_type = event_type(&own, variant, &types)?;
        let payload = format_ident!("__Outbox{}", variant.ident.unraw());
        let description = Description {
            event_type: event_type.clone(),
            own: &own,
            shared: Some(&shared),
            fields: &variant.fields,
            owner: format!("variant `{}`", variant.ident),
        };
        let message = description.message_impl(&krate, &payload)?;
        let shape = payload_struct(&krate, &payload, &input.attrs, variant)?;
        payloads.push(quote! { #shape #message });

        let (name, bindings) = (&variant.ident, bindings(&variant.fields));
        let shown = format!("{ident}::{name}");
        writing.push(quote! {
            #ident::#name { #bindings } => #krate::IntoEvent::into_event(#payload { #bindings }, limit)
        });
        reading.push(quote! {
            #event_type => {
                let #payload { #bindings } = #krate::__private::read::<#payload>(
                    event,
                    ::std::concat!(::std::module_path!(), "::", #shown),
                )?;
                ::std::result::Result::Ok(#ident::#name { #bindings })
            }
        });
        aggregate_types.push(description.routed_aggregate().map(str::to_owned));
        types.push((event_type, &variant.ident));
    }
    // Variants of different aggregates: the handler is registered for any.
    let aggregate_type = match &aggregate_types[0] {
        Some(kind) if aggregate_types.iter().all(|other| other.as_ref() == Some(kind)) => {
            quote! { const AGGREGATE_TYPE: &'static str = #kind; }
        }
        _ => TokenStream::new(),
    };
    let types = types.iter().map(|(event_type, _)| event_type);
    Ok(quote! {
        const _: () = {
            #(#payloads)*

            #[automatically_derived]
            impl #krate::IntoEvent for #ident {
                fn into_event(
                    self,
                    limit: usize,
                ) -> ::std::result::Result<#krate::Event, #krate::EventError> {
                    match self { #(#writing),* }
                }
            }

            #[automatically_derived]
            impl #krate::FromEvent for #ident {
                const TYPES: &'static [&'static str] = &[#(#types),*];
                #aggregate_type

                fn from_event(
                    event: &#krate::Event,
                ) -> ::std::result::Result<Self, #krate::PayloadError> {
                    match event.event_type().as_str() {
                        #(#reading)*
                        _ => ::std::result::Result::Err(#krate::PayloadError::unknown_type::<Self>(event)),
                    }
                }
            }
        };
    })
}

/// The event type of a variant: as given, or its name.
fn event_type(own: &Attributes, variant: &Variant, others: &[(String, &Ident)]) -> Result<String> {
    let (event_type, span) = match &own.event_type {
        Some(literal) => (literal.value(), literal.span()),
        None => (variant.ident.unraw().to_string(), variant.ident.span()),
    };
    check_event_type(&event_type, span)?;
    match others.iter().find(|(other, _)| *other == event_type) {
        Some((_, first)) => {
            Err(Error::new(span, format!("the event type \"{event_type}\" is that of `{first}` already")))
        }
        None => Ok(event_type),
    }
}

/// The struct that is the payload of a variant.
fn payload_struct(
    krate: &Path,
    name: &Ident,
    of_enum: &[syn::Attribute],
    variant: &Variant,
) -> Result<TokenStream> {
    let container = serde_attributes::of_payload(of_enum, &variant.attrs)?;
    let serde = quote! { #krate::__private::serde };
    let serde_path = serde.to_string();
    let fields = variant.fields.iter().map(|field| {
        let (attributes, ty) = (serde_attributes::of_field(&field.attrs), &field.ty);
        let named = field.ident.as_ref().map(|ident| quote! { #ident: });
        quote! { #(#attributes)* #named #ty }
    });
    let body = match &variant.fields {
        Fields::Named(_) => quote! { { #(#fields),* } },
        Fields::Unnamed(_) => quote! { ( #(#fields),* ); },
        Fields::Unit => quote! { ; },
    };
    Ok(quote! {
        #[derive(#serde::Serialize, #serde::Deserialize)]
        #[serde(crate = #serde_path)]
        #container
        #[allow(non_camel_case_types)]
        struct #name #body
    })
}

/// `field: __field0, …`, as a pattern and as an expression: a name of its own for each value, since
/// the name of a field may be that of a constant.
fn bindings(fields: &Fields) -> TokenStream {
    let bindings = fields.iter().enumerate().map(|(index, field)| {
        let member = match &field.ident {
            Some(ident) => Member::Named(ident.clone()),
            None => Member::Unnamed(Index::from(index)),
        };
        let value = Ident::new(&format!("__field{index}"), Span::mixed_site());
        quote! { #member: #value }
    });
    let bindings: Vec<TokenStream> = bindings.collect();
    quote! { #(#bindings),* }
}

/// The path of the crate `outbox`.
fn krate(attributes: &Attributes) -> Path {
    match &attributes.krate {
        Some(path) => path.clone(),
        None => syn::parse_quote! { ::outbox },
    }
}
