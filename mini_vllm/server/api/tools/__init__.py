"""Calls of tools: functions of the client that a model may ask for.

    tools, tool_choice ──▶ template: the tools as text ──▶ engine ──▶ text ──▶ parser ──▶ calls and content
         tool_use             models/chat_templates          │          scanner        answers, whole or in events
                                                             └ required, or named: the output must match a grammar

    fields     the fields of a request that are about tools
    formats    how a model writes a call; recognised from its chat template
    grammar    what an output that must be a call looks like
    scanner    the end of a JSON object, found while it arrives
    findings   content and calls that were found, and the events about them
    parser     calls and content of a text, found while it arrives
    tool_use   what one request asks for
    answers    answers that contain calls
"""
