"""Management of entities as Service Bus has it: Atom documents over HTTP.

This is what `ServiceBusAdministrationClient` of the official SDKs speaks: PUT, GET and DELETE on
the paths of entities, with descriptions in XML. A request is one of these where its query names an
`api-version`; it shares its port with the native API.
"""
